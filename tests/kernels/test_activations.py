"""Activations by the operator, and their gradients, are those of the definition in float64."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.compiler import has_compiler
from addnorm.kernels.activations import NAMES, OPERATOR, activation
from addnorm.kernels.build import load_operator
from addnorm.nn import functional

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")

DEFINITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": functional.gelu_tanh,
    "silu": F.silu,
    "squared_relu": functional.squared_relu,
}
SHAPES = [(0,), (1,), (2,), (3, 5), (17,), (31, 33), (2, 0, 4), (70, 1001)]


@pytest.fixture(autouse=True)
def operator() -> None:
    load_operator(OPERATOR)


def results(function: Callable[..., Tensor], *inputs: Tensor) -> list[Tensor]:
    """The value of a function, and its gradient by each input, for a gradient that varies."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    y = function(*leaves)
    dy = torch.linspace(-2, 2, y.numel()).bfloat16().to(y.dtype).view(y.shape)
    return [y.detach(), *torch.autograd.grad(y, leaves, dy)]


def assert_close(got: list[Tensor], inputs: list[Tensor], function: Callable[..., Tensor]) -> None:
    wide = results(function, *(x.double() for x in inputs))
    tolerance = 4e-3 if inputs[0].dtype is torch.bfloat16 else 2e-6
    for ours, expected in zip(got, wide, strict=True):
        assert ours.dtype is inputs[0].dtype
        torch.testing.assert_close(ours.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradients_are_those_of_the_definition(
    name: str, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    define = DEFINITIONS[name]
    x, up = (4 * torch.randn(*shape).to(dtype) for _ in range(2))
    assert_close(results(lambda x: activation(name, define, x), x), [x], define)
    both = results(lambda x, up: activation(name, define, x, up), x, up)
    assert_close(both, [x, up], lambda x, up: define(x) * up)


@pytest.mark.parametrize("name", NAMES)
def test_large_and_small_numbers(name: str) -> None:
    """Where a square, a cube or an exponential overflows or is zero, the limit is computed."""
    powers = torch.logspace(-30, 18, 200)
    x = torch.cat([-powers, torch.zeros(2), powers])
    assert_close(
        results(lambda x: activation(name, DEFINITIONS[name], x), x), [x], DEFINITIONS[name]
    )


@pytest.mark.parametrize("name", NAMES)
def test_nan_stays_where_it_is(name: str) -> None:
    x = torch.ones(40)
    x[[3, 17, 39]] = math.nan
    got = results(lambda x: activation(name, DEFINITIONS[name], x), x)
    assert all(torch.equal(y.isnan(), x.isnan()) for y in got)


@pytest.mark.parametrize("name", NAMES)
def test_a_number_is_the_same_at_every_place(name: str) -> None:
    """Alone, in a full vector, and in what is left after the last one."""
    x = 3 * torch.randn(53)
    whole = results(lambda x: activation(name, DEFINITIONS[name], x), x)[0]
    parts = [activation(name, DEFINITIONS[name], part) for part in x.split([1, 20, 32])]
    assert torch.equal(whole, torch.cat(parts))


def test_other_layouts_and_second_derivatives() -> None:
    x, up = torch.randn(6, 5).t().requires_grad_(), torch.randn(5, 12)[:, ::2].requires_grad_()

    def penalty(function: Callable[[Tensor, Tensor], Tensor]) -> list[Tensor]:
        [g] = torch.autograd.grad(function(x, up).square().sum(), x, create_graph=True)
        return [g.detach(), *torch.autograd.grad(g.square().sum(), [x, up])]

    for name, define in DEFINITIONS.items():
        ours = penalty(lambda x, up, name=name, define=define: activation(name, define, x, up))
        theirs = penalty(lambda x, up, define=define: define(x) * up)
        for got, expected in zip(ours, theirs, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="no activation is called mish"):
        activation("mish", F.mish, torch.ones(3))


def test_tensors_that_do_not_fit_are_refused() -> None:
    x = torch.zeros(4, 6)
    for up in (x[:1], x[:, :3], x.bfloat16(), x.t().contiguous().t(), x.flatten()):
        with pytest.raises(RuntimeError, match="do not fit together"):
            torch.ops.addnorm.activation(x, up, "silu")
        for dy, by in ((up, None), (x, up)):
            with pytest.raises(RuntimeError, match="do not fit together"):
                torch.ops.addnorm.activation_backward(dy, x, by, "silu")
    for other in (x.double(), x.t()):
        with pytest.raises(RuntimeError, match="do not fit together"):
            torch.ops.addnorm.activation(other, None, "silu")
