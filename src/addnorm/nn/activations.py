"""Activation functions by our C++ operator, where it is faster on this processor (`choices`)."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from addnorm.kernels.activations import DTYPES, OPERATOR, activation
from addnorm.kernels.build import is_loaded
from addnorm.nn import functional
from addnorm.nn.choices import choices, takes_operators

MANY = 2**14
"""The number of values from which the operator is called: it takes longer to start."""


def gelu_tanh(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`x (1 + tanh u) / 2`, as in `functional.gelu_tanh`."""
    if _by_operator(x):
        return activation("gelu_tanh", functional.gelu_tanh, x)
    return functional.gelu_tanh(x)


def squared_relu(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`max(x, 0)²`, as in `functional.squared_relu`."""
    if _by_operator(x):
        return activation("squared_relu", functional.squared_relu, x)
    return functional.squared_relu(x)


def gated(
    function: Callable[[Tensor], Tensor],
    gate: Float[Tensor, "*shape"],
    up: Float[Tensor, "*shape"],
) -> Float[Tensor, "*shape"]:
    """`act(gate) ⊙ up` (Shazeer 2020)."""
    alike = gate.dtype is up.dtype and gate.shape == up.shape
    if function in GATES and alike and takes_operators(up) and _by_operator(gate):
        return activation(*GATES[function], gate, up)
    return function(gate) * up


GATES: dict[Callable[[Tensor], Tensor], tuple[str, Callable[[Tensor], Tensor]]] = {
    F.silu: ("silu", F.silu),
    gelu_tanh: ("gelu_tanh", functional.gelu_tanh),
    squared_relu: ("squared_relu", functional.squared_relu),
}
"""The operator's name of a function, and its definition."""


def _by_operator(x: Tensor) -> bool:
    return (
        takes_operators(x)
        and x.dtype in DTYPES
        and x.numel() >= MANY
        and choices().activation == "operator"
        and is_loaded(OPERATOR)
    )
