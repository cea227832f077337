"""Linear recurrences: chunks of any size = single steps, whatever the decays and the texts."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn.delta import delta_chunks, delta_steps, unit
from addnorm.nn.linear_recurrence import RecurrenceInputs, draw_decays
from addnorm.nn.mamba import selective_chunks, selective_steps

RULES = {"delta": (delta_chunks, delta_steps), "selective": (selective_chunks, selective_steps)}


@pytest.mark.parametrize("rule", RULES)
@given(
    n=st.integers(1, 9),
    size=st.integers(1, 10),
    channels=st.booleans(),
    far=st.sampled_from([0.1, 30.0]),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_chunks_of_any_size_equal_single_steps(
    rule: str, n: int, size: int, channels: bool, far: float, data: st.DataObject
) -> None:
    """With weak and strong decays, a state from before, and texts that begin anywhere."""
    chunks, steps = RULES[rule]
    torch.manual_seed(data.draw(st.integers(0, 99)))
    q, k, v = (torch.randn(2, 3, n, width).double() for width in (4, 4, 5))
    log_decay = -far * torch.rand(2, 3, n, 4 if channels else 1).double()
    rate, state = torch.rand(2, 3, n, 1).double(), torch.randn(2, 3, 4, 5).double()
    begins = None
    if data.draw(st.booleans()):
        begins = torch.tensor(data.draw(st.lists(st.booleans(), min_size=2 * n, max_size=2 * n)))
        begins = begins.view(2, n)
    x = RecurrenceInputs(q=q, k=unit(k), v=v, log_decay=log_decay, rate=rate)
    expected = steps(x, state, begins)
    for got, one_by_one in zip(chunks(x, state, size, begins), expected, strict=True):
        assert_close(got, one_by_one, rtol=1e-10, atol=1e-10)
    narrow = chunks(x.map(Tensor.float), state.float(), size, begins)[0]
    assert_close(narrow.double(), expected[0], rtol=1e-5, atol=1e-5)


def test_drawn_decays() -> None:
    speeds, steps = torch.empty(500), torch.empty(500)
    draw_decays(speeds, steps)
    assert 0 <= float(speeds.min()) < 1 < math.log(12) < float(speeds.max()) <= math.log(16)
    lengths = torch.nn.functional.softplus(steps)
    assert 0.0009 < float(lengths.min()) < 0.002
    assert 0.05 < float(lengths.max()) < 0.101
