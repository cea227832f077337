"""Blocked attention against the formula in float64: blocks, floors, dropout, gradients."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from addnorm.nn.attention import blocked
from addnorm.nn.attention.blocked import blocked_attention
from addnorm.nn.dropout import keep_mask

LOWEST = torch.finfo(torch.bfloat16).min / 2
P = 0.25


def formula(q: Tensor, k: Tensor, v: Tensor, floor: Tensor | None, kept: Tensor | float) -> Tensor:
    scores = q @ k.mT if floor is None else q @ k.mT + floor.double()
    return (scores.softmax(-1) * kept) @ v


def with_gradients(mixed: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    seed = torch.Generator().manual_seed(1)
    dy = torch.randn(mixed.shape, generator=seed).bfloat16()
    return [mixed, *torch.autograd.grad(mixed, inputs, dy.to(mixed.dtype))]


def heads(batch: int, n_heads: int, seq: int, width: int) -> Tensor:
    """As a linear map leaves them: heads are not contiguous."""
    x = torch.randn(batch, seq, n_heads, width).bfloat16()
    return x.transpose(1, 2).requires_grad_()


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(1, 500),
    st.sampled_from(["none", "for all rows", "for each row"]),
    st.booleans(),
)
def test_equals_the_formula_however_it_is_grouped(
    batch: int, n_heads: int, n_q: int, n_kv: int, at_once: int, floored: str, dropped: bool
) -> None:
    torch.manual_seed(0)
    inputs = [heads(batch, n_heads, n, 4) for n in (n_q, n_kv, n_kv)]
    rows = batch if floored == "for each row" else 1
    allowed = torch.rand(rows, 1, n_q, n_kv) > 0.4
    allowed[..., 0] = True
    floor = None if floored == "none" else torch.where(allowed, 0.0, LOWEST).bfloat16()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocked, "AT_ONCE", at_once)
        torch.manual_seed(2)
        got = with_gradients(blocked_attention(*inputs, floor, P if dropped else 0.0), inputs)
    torch.manual_seed(2)
    pairs = torch.empty(batch * n_heads, n_q, n_kv, dtype=torch.bfloat16)
    kept = keep_mask(pairs, P).double().view(batch, n_heads, n_q, n_kv) if dropped else 1.0
    wide = [x.detach().double().requires_grad_() for x in inputs]
    wanted = with_gradients(formula(*wide, floor, kept), wide)
    for a, b in zip(got, wanted, strict=True):
        assert a.dtype is torch.bfloat16
        assert a.shape == b.shape
        assert (a.double() - b).norm() <= 2e-2 * b.norm() + 1e-2


def test_a_weight_near_one_still_teaches() -> None:
    """0.999 rounds to one in bfloat16: from such weights alone the gradient would vanish."""
    q = torch.tensor([[[[7.0]]]], dtype=torch.bfloat16, requires_grad=True)
    k = torch.tensor([[[[1.0], [0.0]]]], dtype=torch.bfloat16)
    v = torch.tensor([[[[8.0], [-8.0]]]], dtype=torch.bfloat16)
    blocked_attention(q, k, v, None).sum().backward()
    wide = q.detach().double().requires_grad_()
    formula(wide, k.double(), v.double(), None, 1.0).sum().backward()
    assert q.grad is not None
    assert wide.grad is not None
    assert wide.grad.abs() > 1e-2
    assert (q.grad - wide.grad).abs() <= 2e-2 * wide.grad.abs()


def test_keeps_nothing_quadratic() -> None:
    inputs = [heads(1, 1, 64, 4) for _ in range(3)]
    kept = list[int]()
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: kept.append(x.numel()) or x, lambda x: x
    ):
        blocked_attention(*inputs, None)
    assert kept
    assert max(kept) < 64 * 64
