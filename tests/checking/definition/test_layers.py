"""Linear layers and activations against torch's functions."""

import math

import pytest
import torch
from torch.nn import functional as F

from addnorm.checking.definition import MissingDefinition
from addnorm.checking.definition.layers import ACTIVATIONS, activated, linear, under
from addnorm.nn.feedforward import ACTIVATIONS as OURS

X = torch.tensor([[1.0, 2, 3], [4, 5, 6]]).double()


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("relu", F.relu),
        ("squared_relu", lambda x: F.relu(x) ** 2),
        ("gelu", F.gelu),
        ("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
        ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
        ("silu", F.silu),
        ("mish", F.mish),
        ("sigmoid", torch.sigmoid),
        ("tanh", torch.tanh),
        ("identity", lambda x: x),
    ],
)
def test_activations_are_those_of_torch(name: str, function: object) -> None:
    x = torch.linspace(-4, 4, 33, dtype=torch.float64)[None]
    assert callable(function)
    torch.testing.assert_close(activated(name, x), function(x))


def test_every_activation_has_a_definition() -> None:
    assert {*OURS, "identity"} == {*ACTIVATIONS}


def test_xielu() -> None:
    named = {"alpha_p": math.log(math.e**2 - 1), "alpha_n": math.log(math.e - 1), "beta": 0.5}
    weights = {name: torch.tensor(a).double() for name, a in {**named, "eps": -1e-6}.items()}
    x = torch.tensor([[2.0, 0.0, -1.0]]).double()
    # α_p = 2 and α_n = 0.5 + 1: 2 · 2² + 0.5 · 2, and 1.5 (1/e - 1 + 1) - 0.5.
    expected = torch.tensor([[9.0, 0.0, 1.5 / math.e - 0.5]]).double()
    torch.testing.assert_close(activated("xielu", x, weights), expected, rtol=0, atol=2e-6)
    with pytest.raises(MissingDefinition, match="activation 'elu' has no definition"):
        activated("elu", X)


def test_weights_of_a_module() -> None:
    weights = {"a.b.weight": torch.ones(2, 3).double(), "a.b.bias": torch.ones(2).double(), "ab": X}
    assert set(under(weights, "a")) == {"b.weight", "b.bias"}
    assert linear(under(weights, "a"), "b", X).tolist() == [[7, 7], [16, 16]]
