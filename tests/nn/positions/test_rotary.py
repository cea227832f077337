"""Rotary positions: the complex product of the paper, and scores that see the offset alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts import context
from torch import Tensor
from torch.testing import assert_close

from addnorm.nn.context import Context
from addnorm.nn.masks import Full
from addnorm.nn.positions.rotary import Rotary, RotaryConfig


def at(positions: list[int]) -> Context:
    slots = torch.arange(len(positions))
    return Context(
        batch=1, positions=torch.tensor([positions]), q_slots=slots, kv_slots=slots, mask=Full()
    )


def paper(x: Tensor, positions: list[int], theta: float = 10000.0) -> Tensor:
    """`(a + i b) · exp(i p θ^(-2j/d))`, with pairs half a head apart, in complex128."""
    half = x.shape[-1] // 2
    out = torch.empty_like(x, dtype=torch.float64)
    for s, p in enumerate(positions):
        for j in range(half):
            angle = torch.tensor(p * theta ** (-2 * j / x.shape[-1]), dtype=torch.float64)
            turned = torch.complex(x[:, :, s, j].double(), x[:, :, s, j + half].double())
            turned = turned * torch.complex(angle.cos(), angle.sin())
            out[:, :, s, j], out[:, :, s, j + half] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("width", [2, 6, 64])
def test_equals_the_formula(width: int, theta: float) -> None:
    positions = [0, 1, 5, 1000]
    q, k = torch.randn(1, 4, 4, width), torch.randn(1, 2, 4, width)
    got = RotaryConfig(theta=theta).build(8, 16).rotate(q, k, at(positions))
    for turned, x in zip(got, (q, k), strict=True):
        assert_close(turned.double(), paper(x, positions, theta), rtol=0, atol=1e-6)


@given(p=st.integers(0, 2000), s=st.integers(0, 2000), shift=st.integers(0, 100_000))
def test_scores_depend_on_the_offset_alone(p: int, s: int, shift: int) -> None:
    q, k = torch.randn(2, 1, 1, 1, 16, dtype=torch.float64)

    def score(p: int, s: int) -> float:
        (turned_q, _), (_, turned_k) = (
            Rotary().rotate(q, q, at([p])),
            Rotary().rotate(k, k, at([s])),
        )
        return float((turned_q * turned_k).sum())

    assert score(p, s) == pytest.approx(score(p + shift, s + shift), abs=1e-8)


def test_position_zero_and_lengths_stay() -> None:
    q = torch.randn(1, 2, 3, 8)
    turned, _ = Rotary().rotate(q, q, at([0, 7, 99]))
    assert torch.equal(turned[:, :, 0], q[:, :, 0])
    assert_close(turned.norm(dim=-1), q.norm(dim=-1))


def test_far_positions_in_a_bfloat16_model() -> None:
    rotary = Rotary().to(torch.bfloat16)
    q = torch.randn(1, 1, 1, 64).clamp(-1, 1).bfloat16()
    turned, _ = rotary.rotate(q, q, at([131_071]))
    assert turned.dtype == torch.bfloat16
    assert_close(turned.double(), paper(q, [131_071]), rtol=0, atol=1e-2)
    assert not [*rotary.buffers(), *rotary.parameters()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_type_stays(dtype: torch.dtype) -> None:
    q = torch.randn(2, 2, 3, 4).to(dtype)
    assert [x.dtype for x in Rotary().rotate(q, q, context(2, 3))] == [dtype, dtype]


def test_gradients() -> None:
    q = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda q: Rotary().rotate(q, q * 2, context(1, 3)), q)
    assert torch.autograd.gradgradcheck(lambda q: Rotary().rotate(q, q * 2, context(1, 3)), q)


def test_an_odd_head_is_refused() -> None:
    q = torch.randn(1, 1, 2, 5)
    with pytest.raises(ValueError, match="even, got 5"):
        Rotary().rotate(q, q, at([0, 1]))


@pytest.mark.parametrize("theta", [0.0, -1.0])
def test_impossible_theta_is_refused(theta: float) -> None:
    with pytest.raises(ValueError, match="theta"):
        RotaryConfig(theta=theta)
