"""Sinusoidal positions: the paper's numbers, bounds, and the linear map of an offset."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import build_context, context
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn.positions.sinusoidal import (
    Sinusoidal,
    SinusoidalConfig,
    frequencies,
    sinusoidal_encoding,
    waves,
)


def paper(p: int, width: int) -> Tensor:
    row = []
    for j in range(width):
        angle = p / 10000 ** (2 * (j // 2) / width)
        row.append(math.cos(angle) if j % 2 else math.sin(angle))
    return torch.tensor(row, dtype=torch.float64)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 128, 512])
def test_equals_the_formula(width: int) -> None:
    positions = [0, 1, 2, 17, 999, 131_071]
    expected = torch.stack([paper(p, width) for p in positions])
    for dtype, near in ((torch.float32, 1e-6), (torch.float64, 1e-9)):
        got = sinusoidal_encoding(torch.tensor(positions), width, dtype=dtype)
        assert got.dtype == dtype
        assert_close(got.double(), expected, rtol=0, atol=near)


def test_numbers_for_width_four() -> None:
    """science.md §1: `PE(0)`, `PE(1)`, and the two words they are added to."""
    expected = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.8415, 0.5403, 0.0100, 0.99995]])
    assert_close(sinusoidal_encoding(torch.tensor([0, 1]), 4), expected, rtol=0, atol=5e-5)
    hello_world = torch.tensor([[[0.5, 1.0, 0.3, 0.7], [0.8, 0.6, 0.4, 0.9]]])
    added = torch.tensor([[[0.5, 2.0, 0.3, 1.7], [1.6415, 1.1403, 0.4100, 1.89995]]])
    got = SinusoidalConfig().build(build_context(4, 2)).embed(hello_world, context(1, 2))
    assert_close(got, added, rtol=0, atol=5e-5)


def test_encodings_are_bounded_and_distinct() -> None:
    """science.md §1: within [-1, 1], and the first 10,000 positions at D = 128 all differ."""
    table = sinusoidal_encoding(torch.arange(10_000), 128)
    assert table.abs().max() <= 1
    assert len(table.unique(dim=0)) == 10_000
    # Apart by more than rounding: no position's nearest neighbour comes close.
    near = [
        (table[i : i + 1000] @ table.T).topk(2).values[:, 1].max() for i in range(0, 10_000, 1000)
    ]
    assert 64 - torch.stack(near).max() > 0.1


def test_wavelengths_are_geometric() -> None:
    """science.md §1: from 2π towards 10000 · 2π."""
    waves = 2 * math.pi / frequencies(512)
    ratios = waves[1:] / waves[:-1]
    assert waves[0].item() == pytest.approx(2 * math.pi)
    assert 0.9 * 10_000 * 2 * math.pi < waves[-1].item() < 10_000 * 2 * math.pi
    assert_close(ratios, ratios[:1].expand_as(ratios))


@given(k=st.integers(0, 5000), width=st.sampled_from([2, 8, 64]))
def test_one_linear_map_moves_every_position(k: int, width: int) -> None:
    """science.md §1: `M_k` of 2 × 2 turns by `k ω_i` gives `PE(p + k) = M_k PE(p)` at all p."""
    angles = k * frequencies(width)
    turns = [
        torch.stack((torch.stack((a.cos(), a.sin())), torch.stack((-a.sin(), a.cos()))))
        for a in angles
    ]
    shift = torch.block_diag(*turns)
    p = torch.tensor([0, 1, 5, 100, 5000])
    moved = sinusoidal_encoding(p + k, width).double()
    assert_close(sinusoidal_encoding(p, width).double() @ shift.T, moved, rtol=0, atol=1e-5)
    dots = (sinusoidal_encoding(p, width).double() * moved).sum(-1)
    assert_close(dots, angles.cos().sum().expand(5), rtol=0, atol=1e-4)


def test_far_positions_in_a_bfloat16_model() -> None:
    position = Sinusoidal().to(torch.bfloat16)
    ctx = context(1, 131_072)
    got = position.embed(torch.zeros(1, 131_072, 64, dtype=torch.bfloat16), ctx)[0, -1]
    assert got.dtype == torch.bfloat16
    assert_close(got.double(), paper(131_071, 64), rtol=0, atol=1e-2)
    assert not [*position.buffers(), *position.parameters()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_waves_are_exact_far_away(dtype: torch.dtype) -> None:
    positions = torch.tensor([[0, 131_071, -131_071, 10_000_000]])
    cos, sin = waves(positions, frequencies(8), dtype)
    for s, p in enumerate(positions[0].tolist()):
        for i, omega in enumerate(frequencies(8).tolist()):
            near = pytest.approx((math.cos(p * omega), math.sin(p * omega)), abs=1e-7)
            assert (cos[0, s, i].item(), sin[0, s, i].item()) == near


@pytest.mark.parametrize("width", [4, 5])
def test_halves_are_the_same_features_in_another_order(width: int) -> None:
    """Marian's layout: all sines, then all cosines (an odd width drops the last cosine)."""
    x, ctx = torch.zeros(1, 6, width), context(1, 6)
    pairs = SinusoidalConfig().build(build_context(width, 1)).embed(x, ctx)
    halves = SinusoidalConfig(layout="halves").build(build_context(width, 1)).embed(x, ctx)
    order = [*range(0, width, 2), *range(1, width, 2)]
    assert_close(halves, pairs[..., order], rtol=0, atol=0)
