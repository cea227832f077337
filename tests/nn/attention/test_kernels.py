"""Kernel selection: every kernel gives the numbers of the definition."""

import math
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from addnorm.compiler import has_compiler
from addnorm.kernels.build import load_operator
from addnorm.nn.attention import kernels
from addnorm.nn.attention.kernels import blocked_attention, dot_product_attention
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.dropout import keep_mask
from addnorm.nn.linear import multiplies_bfloat16
from addnorm.nn.masks import Causal, Dense, Evaluated, Full


def definition(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, scale: float) -> Tensor:
    """Vaswani et al. 2017, eq. 1, in float64; a query that sees nothing gives zeros."""
    k, v = (x.double().repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
    scores = scale * q.double() @ k.mT
    if allowed is None:
        return scores.softmax(-1) @ v
    weights = scores.masked_fill(~allowed, -math.inf).softmax(-1).nan_to_num(0.0)
    return weights @ v


@pytest.mark.parametrize("n_q", [1, 8, 9, 30])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("mask", ["full", "causal", "dense"])
def test_every_number_of_queries_has_the_scale_and_the_mask(
    n_q: int, scale: float | None, mask: str
) -> None:
    """On both sides of `few_queries`, where another kernel takes over."""
    q, k, v = torch.randn(2, 4, n_q, 6), torch.randn(2, 2, 30, 6), torch.randn(2, 2, 30, 7)
    if mask == "causal":
        k, v = k[:, :, :n_q], v[:, :, :n_q]
    allowed = torch.rand(2, 1, n_q, 30) > 0.3
    allowed[0, 0, 0] = False
    form: Any = {"full": Full(), "causal": Causal(), "dense": Dense(allowed)}[mask]
    seen = {"full": None, "causal": torch.ones(n_q, n_q).tril().bool(), "dense": allowed}[mask]
    got = dot_product_attention(q, k, v, form, scale=scale)
    expected = definition(q, k, v, seen, scale or 6**-0.5)
    assert_close(got.double(), expected, rtol=0, atol=2e-6)


def test_wider_values_go_through_the_blocked_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """bfloat16 under autocast, where a few heads at a time are computed."""
    monkeypatch.setattr(kernels, "use_blocked_attention", lambda q, k: True)
    q, k, v = (torch.randn(1, 2, 16, n).bfloat16() for n in (8, 8, 12))
    with torch.autocast("cpu", torch.bfloat16):
        got = dot_product_attention(q, k, v, Full())
    assert got.shape == (1, 2, 16, 12)
    assert_close(got.double(), definition(q, k, v, None, 8**-0.5), rtol=0, atol=0.03)


@pytest.mark.parametrize("short_keys", [0, 1024])
@pytest.mark.parametrize("compiling", [False, True])
@pytest.mark.parametrize("products", [False, True])
def test_a_compiled_step_multiplies_short_texts_plainly(
    short_keys: int, compiling: bool, products: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever eager attention was measured to be, where the processor has products of bfloat16."""
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    monkeypatch.setattr(kernels, "multiplies_bfloat16", products)
    chosen = KernelChoices(short_keys=short_keys)
    with use_choices(chosen), torch.autocast("cpu", torch.bfloat16):
        for length in (256, 257):
            q = torch.randn(1, 1, length, 4).bfloat16()
            expected = short_keys > 0 or (compiling and products and length == 256)
            assert kernels.prefers_products(q, q) == expected


@pytest.mark.skipif(not multiplies_bfloat16, reason="this processor multiplies no bfloat16")
@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_by_choice_the_operator_computes_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of bfloat16, with even sizes and a mask that it knows, from some keys on; of nothing else."""
    load_operator(kernels.operator.OPERATOR)
    calls: list[bool] = []
    attend = kernels.operator.attention
    monkeypatch.setattr(
        kernels.operator,
        "attention",
        lambda *x, **named: (calls.append(named["causal"]), attend(*x, **named))[1],
    )

    def gradients(n: int, mask: Evaluated, **changes: Any) -> tuple[Tensor, ...]:
        torch.manual_seed(n)
        dtype = changes.pop("dtype", torch.bfloat16)
        q, k, v = (x.to(dtype).requires_grad_() for x in (heads(1, 2, n, 8) for _ in range(3)))
        y = dot_product_attention(q, k, v, mask, **changes)
        return torch.autograd.grad((y * y.detach().sin()).sum(), [q, k, v])

    n = kernels.FEW_KEYS
    others = (
        (n - 2, Causal(), {}),
        (n + 1, Causal(), {}),
        (n, Causal(), {"dtype": torch.float32}),
        (n, Dense(torch.ones(1, 1, n, n, dtype=torch.bool)), {}),
        (n, Causal(), {"bias": torch.zeros(1, 1, n, n)}),
        (n, Causal(), {"dropout": 0.1}),
    )
    expected = [gradients(n, mask) for mask in (Causal(), Full())]
    with use_choices(KernelChoices(attention="operator")):
        for n_keys, mask, changes in others:
            gradients(n_keys, mask, **dict(changes))
        assert not calls
        for mask, want in zip((Causal(), Full()), expected, strict=True):
            assert_close(gradients(n, mask), want, rtol=0.02, atol=0.02)
    assert calls == [True, False]


@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
@pytest.mark.parametrize("by", ["torch", "operator"])
def test_by_choice_an_operator_computes_the_output_in_bfloat16(
    by: Literal["torch", "operator"], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (kernels.operator.OPERATOR, kernels.operator.FORWARD):
        load_operator(name)
    seen = list[bool]()
    attend = kernels.operator.attention
    monkeypatch.setattr(
        kernels.operator,
        "attention",
        lambda *x, by_torch, **named: (
            seen.append(by_torch),
            attend(*x, by_torch=by_torch, **named),
        )[1],
    )
    q = torch.randn(1, 1, kernels.FEW_KEYS, 8, dtype=torch.bfloat16, requires_grad=True)
    with use_choices(KernelChoices(attention="operator", attention_forward=by)):
        y = dot_product_attention(q, q, q, Causal())
    assert_close(y, dot_product_attention(q, q, q, Causal()), rtol=0.02, atol=0.02)
    assert seen == [by == "torch"]


@pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
def test_by_choice_the_operator_trains_causal_attention_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of some hundred keys, heads of one number and width, and with gradients; nothing else."""
    load_operator(kernels.causal_attention.OPERATOR)
    calls: list[Tensor] = []
    attend = kernels.causal_attention.causal_attention
    monkeypatch.setattr(
        kernels.causal_attention,
        "causal_attention",
        lambda *x, **named: (calls.append(x[0]), attend(*x, **named))[1],
    )
    least, most = kernels.FEW_IN_FLOAT32, kernels.SHORT_IN_FLOAT32

    def attended(n: int, mask: Evaluated, **changes: Any) -> Tensor:
        torch.manual_seed(n)
        dtype, kv_heads, width = (
            changes.pop(name, default)
            for name, default in (("dtype", torch.float32), ("kv_heads", 2), ("width", 8))
        )
        q = torch.randn(1, 2, n, width, dtype=dtype, requires_grad=changes.pop("grad", True))
        k, v = (torch.randn(1, kv_heads, n, width, dtype=dtype) for _ in range(2))
        return dot_product_attention(q, k, v, mask, **changes)

    others: tuple[tuple[int, Evaluated, dict[str, Any]], ...] = (
        (least - 1, Causal(), {}),
        (most + 1, Causal(), {}),
        (least, Full(), {}),
        (least, Dense(torch.ones(1, 1, least, least).tril().bool()), {}),
        (least, Causal(), {"bias": torch.zeros(1, 1, least, least)}),
        (least, Causal(), {"dropout": 0.1}),
        (least, Causal(), {"sinks": torch.zeros(2)}),
        (least, Causal(), {"grad": False}),
        (least, Causal(), {"kv_heads": 1}),
        (least, Causal(), {"width": kernels.NARROW + 1}),
        (least, Causal(), {"dtype": torch.float64}),
    )
    lengths = (least, least + 1, most)
    expected = [attended(n, Causal()) for n in lengths]
    with use_choices(KernelChoices(causal_attention="operator")):
        for n, mask, changes in others:
            attended(n, mask, **changes)
        with torch.autocast("cpu", torch.bfloat16):
            attended(least, Causal())
        assert not calls
        for n, want in zip(lengths, expected, strict=True):
            assert_close(attended(n, Causal()), want, rtol=1e-5, atol=1e-5)
    assert len(calls) == len(lengths)


@pytest.mark.parametrize("n_keys", [kernels.MANY_KEYS - 1, kernels.MANY_KEYS])
def test_heads_that_share_many_keys_read_them_by_products(n_keys: int) -> None:
    """Whatever was measured for heads that share none."""
    q, k, v = torch.randn(2, 4, 1, 8), *torch.randn(2, 2, 1, n_keys, 8)
    with use_choices(KernelChoices(few_queries=0)):
        assert kernels.prefers_products(q, k) == (n_keys == kernels.MANY_KEYS)
        assert not kernels.prefers_products(q, k.expand(-1, 4, -1, -1))
        got = kernels.dot_product_attention(q, k, v, Full())
    assert_close(got.double(), definition(q, k, v, None, 8**-0.5), rtol=0, atol=1e-5)


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
        patch.setattr(kernels, "AT_ONCE", at_once)
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
