"""The choice between torch and the operator changes activations by rounding only."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.compiler import has_compiler
from addnorm.kernels.activations import OPERATOR
from addnorm.kernels.build import load_operator
from addnorm.nn import activations, functional
from addnorm.nn.activations import GATES, MANY, gated, gelu_tanh, squared_relu
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig

pytestmark = pytest.mark.skipif(not has_compiler(), reason="needs a C++ compiler")
CHOSEN = KernelChoices(activation="operator")


@pytest.fixture(autouse=True)
def _loaded() -> None:
    load_operator(OPERATOR)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that the operator computed."""
    names: list[str] = []
    operator = activations.activation
    monkeypatch.setattr(
        activations,
        "activation",
        lambda name, *rest: (names.append(name), operator(name, *rest))[1],
    )
    return names


@pytest.mark.parametrize("gate", GATES)
def test_by_choice_the_operator_computes_many_values(
    gate: Callable[[Tensor], Tensor], calls: list[str]
) -> None:
    x, up = torch.randn(MANY), torch.randn(MANY)
    few = gated(gate, x[:-1], up[:-1])
    expected = gated(gate, x, up)
    assert not calls
    with use_choices(CHOSEN):
        torch.testing.assert_close(gated(gate, x, up), expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(gated(gate, x[:-1], up[:-1]), few)
        gated(gate, x.double(), up.double())
        gated(F.mish, x, up)
        torch.func.vmap(lambda x: gated(gate, x, x))(x[None])
    assert calls == [GATES[gate][0]]


def test_each_function_is_its_own_definition(calls: list[str]) -> None:
    x = torch.randn(2, MANY)
    with use_choices(CHOSEN):
        for ours, definition in (
            (gelu_tanh, functional.gelu_tanh),
            (squared_relu, functional.squared_relu),
        ):
            torch.testing.assert_close(ours(x), definition(x), rtol=1e-5, atol=1e-6)
    assert calls == ["gelu_tanh", "squared_relu"]


@pytest.mark.parametrize(
    "config", [FeedForwardConfig(activation="gelu_tanh"), GatedFeedForwardConfig()]
)
def test_feed_forward_layers_use_it(config, calls: list[str]) -> None:
    torch.manual_seed(0)
    layer, x = config.build(64), torch.randn(2, 100, 64)
    y = layer(x)
    with use_choices(CHOSEN):
        torch.testing.assert_close(layer(x), y, rtol=1e-4, atol=1e-5)
    assert len(calls) == 1


@pytest.mark.usefixtures("types_unchecked")
def test_tensors_that_the_operator_does_not_know_are_left_to_torch(calls: list[str]) -> None:
    """Also the second one: of another shape, its memory would be read past its end."""
    x, row = torch.randn(4, MANY), torch.randn(1, MANY)
    negative = torch._neg_view(x)
    with use_choices(CHOSEN):
        torch.testing.assert_close(gated(F.silu, x, row), F.silu(x) * row)
        torch.testing.assert_close(gated(F.silu, x, negative), -F.silu(x) * x)
        torch.testing.assert_close(gated(F.silu, negative, x), F.silu(-x) * x)
    assert not calls
