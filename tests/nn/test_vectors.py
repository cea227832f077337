"""The vector head: its pooling alone, and texts with fewer tokens than a joined pooling takes."""

import torch
from tests.contracts import context
from torch.testing import assert_close

from addnorm.nn.pooling import JoinedPoolingConfig
from addnorm.nn.vectors import VectorHeadConfig

VALID = torch.tensor([[True, True, True, True], [False, True, True, False], [False] * 4])


def test_first_tokens_and_the_mean_of_the_rest() -> None:
    x = torch.randn(3, 4, 2).double()
    head = VectorHeadConfig(pooling=JoinedPoolingConfig(first=1, skipped=1)).build(2, 0)
    found = head(x, context(3, 4, valid=VALID))
    zeros = torch.zeros(2).double()
    expected = [torch.cat([x[0, 0], (x[0, 2] + x[0, 3]) / 2]), torch.cat([x[1, 1], zeros])]
    assert_close(found, torch.stack([*expected, torch.cat([zeros, zeros])]))


def test_padding_takes_no_part() -> None:
    x = torch.randn(3, 4, 2)
    head = VectorHeadConfig(pooling=JoinedPoolingConfig(first=2)).build(2, 0)
    ctx = context(3, 4, valid=VALID)
    dirty = x.masked_fill(~VALID[..., None], float("nan"))
    assert torch.equal(head(dirty, ctx), head(x, ctx))


def test_a_model_without_weights_in_its_head() -> None:
    assert not list(VectorHeadConfig(pooling="first").build(4, 0).parameters())
