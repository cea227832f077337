"""The CTC head: its loss over all alignments, one path at a time."""

from itertools import groupby, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from addnorm.data.ids.layout import fewest_outputs
from addnorm.nn.ctc import BLANK, CTCHeadConfig


def text_of(path: tuple[int, ...]) -> list[int]:
    return [symbol for symbol, _ in groupby(path) if symbol != BLANK]


def log_p_by_enumeration(logits: Tensor, target: list[int]) -> Tensor:
    """The sum over every path that is the text, one path at a time."""
    log_p = logits.log_softmax(-1)
    n_frames, vocab = logits.shape
    paths = [p for p in product(range(vocab), repeat=n_frames) if text_of(p) == target]
    scores = [sum(log_p[t, symbol] for t, symbol in enumerate(path)) for path in paths]
    return torch.stack([torch.as_tensor(score) for score in scores]).logsumexp(0)


@pytest.mark.parametrize("target", [[1], [2, 1], [1, 1], [1, 2, 1]])
@pytest.mark.parametrize("n_frames", [3, 5])
def test_the_loss_sums_over_every_alignment(target: list[int], n_frames: int) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 5, 3, dtype=torch.float64)
    valid = torch.arange(5)[None] < n_frames
    head = CTCHeadConfig().build(4, 3)
    padded = torch.tensor([[*target, -100, -100]])
    right = -log_p_by_enumeration(logits[0, :n_frames], target)
    loss = head.loss_sum(logits, padded, None if n_frames == 5 else valid)
    torch.testing.assert_close(loss, right)


@given(st.lists(st.integers(1, 2), min_size=1, max_size=5), st.integers(1, 10))
def test_the_loss_is_finite_where_the_outputs_are_enough(target: list[int], n: int) -> None:
    torch.manual_seed(0)
    loss = CTCHeadConfig().build(4, 3).loss_sum(torch.randn(1, n, 3), torch.tensor([target]), None)
    paths = (path for path in product(range(3), repeat=n) if text_of(path) == target)
    if n <= 6:
        assert (next(paths, None) is not None) == bool(loss.isfinite())
    assert (fewest_outputs(target) <= n) == bool(loss.isfinite())
