"""Learned positions: rows of a table, and an error beyond its end."""

import pytest
import torch
from tests.contracts import build_context, context
from torch.testing import assert_close

from addnorm.nn.positions import Learned, LearnedConfig, NoPosition


def test_adds_the_row_of_each_position() -> None:
    learned, x = LearnedConfig().build(build_context(4, 2, max_len=5)), torch.randn(2, 3, 4)
    assert isinstance(learned, Learned)
    assert_close(learned.embed(x, context(2, 3)), x + learned.table.weight[:3])
    assert isinstance(learned.in_layer(0), NoPosition)
    assert learned.max_len == 5


def test_the_last_row_is_used_and_the_next_refused() -> None:
    """science.md §1: past `max_len` is a clear error, never a wrapped or clamped index."""
    learned = LearnedConfig().build(build_context(4, 2, max_len=5))
    assert learned.embed(torch.zeros(1, 5, 4), context(1, 5)).shape == (1, 5, 4)
    with pytest.raises(ValueError, match=r"position 5 is past the learned table.* 5 positions"):
        learned.embed(torch.zeros(1, 6, 4), context(1, 6))


def test_a_cached_token_past_the_end_is_refused() -> None:
    learned = LearnedConfig().build(build_context(4, 2, max_len=5))
    assert learned.embed(torch.zeros(1, 1, 4), context(1, 1, past=4)).shape == (1, 1, 4)
    with pytest.raises(ValueError, match="position 5"):
        learned.embed(torch.zeros(1, 1, 4), context(1, 1, past=5))


@pytest.mark.parametrize("valid", [[0, 0, 1, 1, 1], [1, 1, 1, 0, 0]])
def test_padding_takes_no_position(valid: list[int]) -> None:
    learned = LearnedConfig().build(build_context(4, 2, max_len=3))
    ctx = context(1, 5, valid=torch.tensor([valid]).bool())
    out = learned.embed(torch.zeros(1, 5, 4), ctx)
    assert_close(out[0, torch.tensor(valid).bool()], learned.table.weight.detach())
