"""Sinusoidal positions: the paper's numbers, bounds, waves, and the linear map of an offset."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import context
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn.positions.sinusoidal import Sinusoidal, frequencies, phases, sinusoidal_encoding


def paper(p: int, width: int) -> Tensor:
    row = []
    for j in range(width):
        angle = p / 10000 ** (2 * (j // 2) / width)
        row.append(math.cos(angle) if j % 2 else math.sin(angle))
    return torch.tensor(row, dtype=torch.float64)


@pytest.mark.parametrize("width", [1, 2, 3, 4, 7, 128, 512])
def test_equals_the_formula(width: int) -> None:
    positions = [0, 1, 2, 17, 999, 131_071]
    got = sinusoidal_encoding(torch.tensor(positions), width)
    assert got.dtype == torch.float32
    assert_close(got.double(), torch.stack([paper(p, width) for p in positions]), rtol=0, atol=1e-6)


def test_numbers_for_width_four() -> None:
    expected = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.8415, 0.5403, 0.0100, 0.99995]])
    assert_close(sinusoidal_encoding(torch.tensor([0, 1]), 4), expected, rtol=0, atol=5e-5)


def test_bounded_and_no_two_alike() -> None:
    table = sinusoidal_encoding(torch.arange(10_000), 128)
    assert table.abs().max() <= 1
    assert len(table.unique(dim=0)) == 10_000
    # Apart by more than rounding: no position's nearest neighbour comes close.
    near = [
        (table[i : i + 1000] @ table.T).topk(2).values[:, 1].max() for i in range(0, 10_000, 1000)
    ]
    assert 64 - torch.stack(near).max() > 0.1


def test_wavelengths_are_geometric() -> None:
    waves = 2 * math.pi / frequencies(512)
    ratios = waves[1:] / waves[:-1]
    assert waves[0].item() == pytest.approx(2 * math.pi)
    assert 0.9 * 10_000 * 2 * math.pi < waves[-1].item() < 10_000 * 2 * math.pi
    assert_close(ratios, ratios[:1].expand_as(ratios))


@given(k=st.integers(0, 5000), width=st.sampled_from([2, 8, 64]))
def test_one_linear_map_moves_every_position(k: int, width: int) -> None:
    """`M_k` of 2 × 2 turns by `k ω_i` gives `PE(p + k) = M_k PE(p)` at all p."""
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
    assert phases(torch.tensor([131_071]), 64).dtype == torch.float64
    assert not [*position.buffers(), *position.parameters()]
