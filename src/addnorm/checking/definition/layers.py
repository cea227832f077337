"""The definitions of the linear layer and of activation functions; weights by name."""

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.checking.definition.definitions import MissingDefinition

Weights = Mapping[str, Tensor]
Tokens = Float[Tensor, "seq _width"]


def under(weights: Weights, path: str) -> Weights:
    """The weights below `path`, by their names within that module."""
    start = path + "."
    return {name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}


def linear(weights: Weights, name: str, x: Tokens) -> Tokens:
    """`x Wᵀ + b`, or `x Wᵀ` if there is no bias."""
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def sigmoid(x: Tensor) -> Tensor:
    """`1 / (1 + exp(-x)) = (1 + tanh(x / 2)) / 2`, which overflows for no `x`."""
    return (1 + torch.tanh(x / 2)) / 2


def relu(x: Tensor) -> Tensor:
    """`max(x, 0)`."""
    return torch.where(x > 0, x, 0.0)


def gelu(x: Tensor) -> Tensor:
    """`x Φ(x)` (Hendrycks & Gimpel 2016, eq. 1)."""
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: Tensor) -> Tensor:
    """The tanh approximation of GELU (Hendrycks & Gimpel 2016, eq. 2)."""
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "relu": relu,
    "squared_relu": lambda x: relu(x) ** 2,  # So et al. 2021, §4
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x),  # Hendrycks & Gimpel 2016, §2
    "silu": lambda x: x * sigmoid(x),
    "mish": lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))),  # Misra 2020, eq. 1
    "sigmoid": sigmoid,
    "tanh": torch.tanh,
    "identity": lambda x: x,
}


def xielu(weights: Weights, x: Tensor) -> Tensor:
    """Huang et al. 2024, with a slope of 0.5 at zero."""
    positive, negative = (
        torch.log(1 + torch.exp(weights[name])) for name in ("alpha_p", "alpha_n")
    )
    below = torch.exp(torch.where(x < weights["eps"], x, weights["eps"])) - 1 - x
    slope = weights["beta"]
    return torch.where(x > 0, positive * x**2, (slope + negative) * below) + slope * x


def activated(name: str, x: Tokens, weights: Weights | None = None) -> Tokens:
    """Apply the named activation function, which may have weights.

    Raises `MissingDefinition` for an unknown one.
    """
    if name == "xielu":
        return xielu(weights or {}, x)
    if name not in ACTIVATIONS:
        raise MissingDefinition(
            f"activation {name!r} has no definition: add it to checking/definition/layers.py"
        )
    return ACTIVATIONS[name](x)
