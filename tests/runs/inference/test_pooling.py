"""Vectors of hidden states: the mean without padding, the first, the last, and of whole inputs."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch.testing import assert_close

from addnorm.nn.context import Context
from addnorm.nn.masks import Full
from addnorm.runs.inference.pooling import pooled

X = torch.randn(2, 4, 3, dtype=torch.float64)
VALID = torch.tensor([[True, True, True, False], [True, False, False, False]])
RUN = cast(Any, SimpleNamespace(model=SimpleNamespace(head=None), name="runs/a"))


def vectors(valid: torch.Tensor | None, pooling: Any) -> torch.Tensor:
    return pooled(RUN, X, Context.over(X[..., 0], Full(), valid=valid), pooling)


def test_padding_is_left_out() -> None:
    assert_close(vectors(VALID, None), torch.stack([X[0, :3].mean(0), X[1, 0]]))
    assert_close(vectors(VALID, "last"), torch.stack([X[0, 2], X[1, 0]]))
    assert_close(vectors(VALID, "first"), X[:, 0])


@pytest.mark.parametrize("pooling", ["mean", "first", "last"])
def test_without_a_mask_every_position_counts(pooling: str) -> None:
    """Images, and clips of one length."""
    assert_close(vectors(None, pooling), vectors(torch.ones(2, 4, dtype=torch.bool), pooling))
