"""Linear layers of many rows and their gradients, by our operator.

Several layers with one input are one product. In bfloat16 the operator rounds inputs and weights on
their way into the cache, so that none is cast in a pass of its own; biases and their gradients need
none either.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Float32
from torch import Tensor

OPERATOR = "linear"

torch.library.define(
    "addnorm::linear", "(Tensor x, Tensor[] weights, Tensor[]? biases, bool narrow) -> Tensor"
)
torch.library.define(
    "addnorm::linear_backward",
    "(Tensor dy, Tensor x, Tensor[] weights, bool of_x, bool of_weights)"
    " -> (Tensor, Tensor, Tensor)",
)


def linear(
    x: Float[Tensor, "rows d_in"],
    weights: Sequence[Float32[Tensor, "_d_out d_in"]],
    biases: Sequence[Float32[Tensor, " _d_out"]],
    *,
    narrow: bool,
) -> Float[Tensor, "rows d_out"]:
    """`x Wᵀ + b` of float32, or of bfloat16 if `narrow`, with sums in float32.

    The results of several matrices are side by side; there is a bias for each, or none. If
    `narrow`, `x` is float32 or bfloat16, and has a gradient of its dtype. All tensors are
    contiguous.
    """
    return _Linear.apply(x, len(weights), narrow, *weights, *biases)  # pyright: ignore[reportReturnType]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, n_weights: int, narrow: bool, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:n_weights], parameters[n_weights:]
        ctx.save_for_backward(x, *weights)
        ctx.sizes = [len(weight) for weight in weights]
        return torch.ops.addnorm.linear(x, weights, biases or None, narrow)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, *weights = ctx.saved_tensors
        of_x, _, _, *of_parameters = ctx.needs_input_grad
        if torch.is_grad_enabled():  # it will be differentiated once more
            dx, dw, db = _definition(grads[0], x, torch.cat(weights))
        else:
            dx, dw, db = torch.ops.addnorm.linear_backward(
                grads[0].contiguous(), x, weights, of_x, any(of_parameters)
            )
        parts = [*dw.split(ctx.sizes), *db.split(ctx.sizes)] if any(of_parameters) else []
        wanted = (parts[i] if needs else None for i, needs in enumerate(of_parameters))
        return dx if of_x else None, None, None, *wanted


def _definition(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by torch, with gradients of their own."""
    dx, dw = dy @ weight.to(dy.dtype), dy.t() @ x.to(dy.dtype)
    return dx.to(x.dtype), dw.to(weight.dtype), dy.sum(0, dtype=weight.dtype)
