"""Second derivatives through an operator, and several gradients at once, are the definition's."""

from collections.abc import Callable
from functools import partial
from itertools import combinations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.compiler import has_compiler
from addnorm.kernels import activations, add_norm, attention, causal_attention
from addnorm.kernels.build import load_operator
from addnorm.nn.attention.kernels import blocked_attention

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

Function = Callable[..., Tensor]


def gated(x: Tensor, up: Tensor) -> Tensor:
    return activations.activation("silu", F.silu, x, up)


def gated_by_itself(x: Tensor) -> Tensor:
    return activations.activation("silu", F.silu, x, x.tanh())


def rows_of(p: float, *, centred: bool) -> tuple[Function, Function]:
    """The operator under one mask, and its definition."""
    options = {"centred": centred, "eps": 1e-5}

    def ours(f: Tensor, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        torch.manual_seed(3)
        return add_norm.add_norm(f, x, gain, bias, p=p, **options)

    def definition(f: Tensor, x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        torch.manual_seed(3)
        seed = int(torch.randint(2**62, ())) if p else 0
        inputs = torch.ones(f.shape), torch.zeros(f.shape), None, None
        mask = torch.ops.addnorm.add_norm(*inputs, centred, 1e-5, p, seed)[1]
        s = x + mask.to(x.dtype) * f
        if centred:
            return F.layer_norm(s, s.shape[-1:], gain, bias)
        return F.rms_norm(s, s.shape[-1:], gain, 1e-5) + bias

    return ours, definition


HEADS, ROWS, WEIGHT = (1, 2, 6, 4), (5, 12), (12,)

CASES: dict[str, tuple[Function, Function, list[tuple[int, ...]]]] = {
    "gate": (gated, lambda x, up: F.silu(x) * up, [ROWS, ROWS]),
    "gated by itself": (gated_by_itself, lambda x: F.silu(x) * x.tanh(), [ROWS]),
    "causal attention": (
        partial(causal_attention.causal_attention, scale=0.7),
        partial(F.scaled_dot_product_attention, is_causal=True, scale=0.7),
        [HEADS] * 3,
    ),
    "attention in bfloat16": (
        partial(attention.attention, causal=False, scale=0.7),
        partial(F.scaled_dot_product_attention, scale=0.7),
        [HEADS] * 3,
    ),
    "LayerNorm": (*rows_of(0.0, centred=True), [ROWS, ROWS, WEIGHT, WEIGHT]),
    "RMSNorm with dropout": (*rows_of(0.4, centred=False), [ROWS, ROWS, WEIGHT, WEIGHT]),
}


@pytest.fixture(autouse=True)
def operators() -> None:
    names = activations.OPERATOR, add_norm.OPERATOR, causal_attention.OPERATOR
    for name in (*names, attention.OPERATOR, attention.FORWARD):
        load_operator(name)


def inputs_of(name: str) -> list[Tensor]:
    shapes = CASES[name][2]
    return [
        torch.randn(shape).to(torch.bfloat16 if "bfloat16" in name else None) for shape in shapes
    ]


def assert_close(ours: list[Tensor], wide: list[Tensor], dtype: torch.dtype) -> None:
    for got, expected in zip(ours, wide, strict=True):
        tolerance = 0.05 if dtype is torch.bfloat16 else 1e-4
        assert (got.double() - expected).norm() <= tolerance * expected.norm() + 1e-6


def penalty(of: Function, inputs: list[Tensor], needed: tuple[int, ...]) -> list[Tensor]:
    """The gradients of the squared sizes of gradients."""
    leaves = [x.detach().requires_grad_(i in needed) for i, x in enumerate(inputs)]
    wanted = [leaves[i] for i in needed]
    y = of(*(x * 1 for x in leaves))  # so that another way than the operator leads to each
    first = torch.autograd.grad(y.to(y.dtype).square().sum(), wanted, create_graph=True)
    loss = torch.stack([g.square().sum() for g in first]).sum()
    second = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(second, wanted, strict=True)]


@pytest.mark.parametrize("name", CASES)
def test_a_second_derivative_is_that_of_the_definition(name: str) -> None:
    """By all inputs, and by some of them where the others need no gradient."""
    ours, definition, shapes = CASES[name]
    inputs = inputs_of(name)
    for needed in [n for size in (1, len(shapes)) for n in combinations(range(len(shapes)), size)]:
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            wide = penalty(definition, [x.double() for x in inputs], needed)
        assert_close(penalty(ours, inputs, needed), wide, inputs[0].dtype)


@pytest.mark.parametrize("name", CASES)
def test_several_gradients_at_once_are_those_of_each(name: str) -> None:
    ours = CASES[name][0]
    leaves = [x.requires_grad_() for x in inputs_of(name)]
    y = ours(*leaves)
    many = torch.randn(3, *y.shape).to(y.dtype)
    options = {"retain_graph": True}
    at_once = torch.autograd.grad(y, leaves, many, is_grads_batched=True, **options)
    each = zip(*(torch.autograd.grad(y, leaves, one, **options) for one in many), strict=True)
    for got, expected in zip(at_once, each, strict=True):
        assert torch.equal(got, torch.stack(expected))


def test_the_gradient_of_a_gradient_goes_through_the_operator_alone() -> None:
    """Where an input leads to the result by another way too, none of both is left out."""
    x = torch.randn(1, 1, 6, 4)

    def slope(attend: Function) -> Tensor:
        weight = torch.eye(4, dtype=dtype).requires_grad_()
        q = x.to(dtype).requires_grad_()
        y = attend(q @ weight, q, q)
        [g] = torch.autograd.grad(y.tanh().sum(), q, create_graph=True)
        return torch.autograd.grad(g.square().sum(), weight)[0]

    dtype = torch.float32
    found = slope(partial(causal_attention.causal_attention, scale=0.5))
    dtype = torch.float64
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wide = slope(partial(F.scaled_dot_product_attention, is_causal=True, scale=0.5))
    assert_close([found], [wide], torch.float32)


def test_a_gradient_without_derivatives_refuses_them() -> None:
    """Also where the gradient that arrives needs none, as that of a sum."""
    q = torch.randn(1, 2, 4, 8).requires_grad_()
    y = blocked_attention(q, q, q, None).sum()
    with pytest.raises(RuntimeError, match="BlockedAttention has no second derivative"):
        torch.autograd.grad(y, q, create_graph=True)
