"""Activation functions and gated ones, forward and backward, in one pass over memory each.

torch computes a gate and its product in two passes, and GELU by a slower tanh. The operator is for
float32 and bfloat16 on a CPU, and computes in float32.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.kernels.derivatives import gradients, is_differentiated

OPERATOR = "activation"

NAMES = ("gelu_tanh", "silu", "squared_relu")
"""The functions that the operator computes."""

DTYPES = (torch.float32, torch.bfloat16)

torch.library.define("addnorm::activation", "(Tensor x, Tensor? up, str name) -> Tensor")
torch.library.define(
    "addnorm::activation_backward",
    "(Tensor dy, Tensor x, Tensor? up, str name) -> (Tensor, Tensor)",
)


def _outline(x: Tensor, up: Tensor | None, name: str) -> Tensor:
    return torch.empty_like(x)


def _outlines_of_gradients(
    dy: Tensor, x: Tensor, up: Tensor | None, name: str
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(0) if up is None else torch.empty_like(x)


torch.library.impl("addnorm::activation", "Meta")(_outline)
torch.library.impl("addnorm::activation_backward", "Meta")(_outlines_of_gradients)


def activation(
    name: str,
    definition: Callable[[Tensor], Tensor],
    x: Float[Tensor, "*shape"],
    up: Float[Tensor, "*shape"] | None = None,
) -> Float[Tensor, "*shape"]:
    """`act(x)`, or `act(x) ⊙ up`. A second derivative is that of the `definition` in torch."""
    return _Activation.apply(x, up, name, definition)  # pyright: ignore[reportReturnType]


class _Activation(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        up: Tensor | None,
        name: str,
        definition: Callable[[Tensor], Tensor],
    ) -> Tensor:
        ctx.save_for_backward(x, up)
        ctx.name, ctx.definition = name, definition
        up = None if up is None else up.contiguous()
        return torch.ops.addnorm.activation(x.contiguous(), up, name)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, up = ctx.saved_tensors
        if is_differentiated():

            def gated(x: Tensor, up: Tensor | None) -> Tensor:
                y = ctx.definition(x)
                return y if up is None else y * up

            return *gradients(gated, (x, up), grads[0]), None, None
        tensors = (grads[0], x, *([] if up is None else [up]))
        dy, x, *rest = (t.contiguous() for t in tensors)
        up = rest[0] if rest else None
        dx, dup = torch.ops.addnorm.activation_backward(dy, x, up, ctx.name)
        return dx, (None if up is None else dup), None, None
