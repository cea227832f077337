"""SeqPool: the weighted mean against the formula in float64; padding takes no part."""

import math

import pytest
import torch
from tests.contracts import check_gradients, context
from torch.testing import assert_close

from addnorm.nn.heads import ClassificationHead, ClassificationHeadConfig
from addnorm.nn.pooling import SequencePooling

VALID = torch.tensor([[True, True, False], [False, True, True], [False, False, False]])


def test_it_is_the_mean_by_the_softmax_of_its_scores() -> None:
    pool, x = SequencePooling(4).double(), torch.randn(3, 3, 4).double()
    found = pool(x, VALID[..., None])
    weight, bias = pool.score.weight[0].tolist(), pool.score.bias.item()
    for row in range(2):
        real = [x[row, t].tolist() for t in range(3) if VALID[row, t]]
        scores = [math.exp(sum(w * v for w, v in zip(weight, t, strict=True)) + bias) for t in real]
        expected = [
            sum(s * t[i] for s, t in zip(scores, real, strict=True)) / sum(scores) for i in range(4)
        ]
        assert_close(found[row].tolist(), expected, rtol=1e-12, atol=1e-12)
    assert torch.equal(found[2], torch.zeros(4).double())


def test_without_a_preference_it_is_the_mean() -> None:
    pool, x = SequencePooling(4), torch.randn(3, 3, 4)
    torch.nn.init.zeros_(pool.score.weight)
    assert_close(pool(x, torch.ones(3, 3, 1, dtype=torch.bool)), x.mean(1))


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_padding_takes_no_part(garbage: float) -> None:
    head, x = ClassificationHead(4, 2, pooling=SequencePooling(4)), torch.randn(3, 3, 4)
    dirty = x.masked_fill(~VALID[..., None], garbage)
    ctx = context(3, 3, valid=VALID)
    found = head(dirty, ctx)
    assert torch.equal(found, head(x, ctx))
    found.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_and_rows_of_padding(dtype: torch.dtype) -> None:
    head = ClassificationHeadConfig(pooling="seqpool").build(4, 5).to(dtype)
    found = head(torch.randn(3, 3, 4).to(dtype), context(3, 3, valid=VALID))
    assert found.isfinite().all()
    assert torch.equal(found[2], head.proj.bias)
    with torch.autocast("cpu", torch.bfloat16):
        wide = ClassificationHeadConfig(pooling="seqpool").build(4, 5)
        assert wide(torch.randn(3, 3, 4), context(3, 3, valid=VALID)).isfinite().all()


def test_gradients() -> None:
    head = ClassificationHeadConfig(pooling="seqpool").build(4, 2)
    ctx = context(3, 3, valid=VALID)
    check_gradients(head, lambda m, x: m(x, ctx), torch.randn(3, 3, 4), twice=True)
