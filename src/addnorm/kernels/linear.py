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

from addnorm.kernels.derivatives import is_differentiated

OPERATOR = "linear"

torch.library.define(
    "addnorm::linear", "(Tensor x, Tensor[] weights, Tensor[]? biases, bool narrow) -> Tensor"
)
torch.library.define(
    "addnorm::linear_backward",
    "(Tensor dy, Tensor x, Tensor[] weights, bool of_x, bool of_weights)"
    " -> (Tensor, Tensor, Tensor)",
)


def _outline(x: Tensor, weights: Sequence[Tensor], biases: object, narrow: bool) -> Tensor:
    dtype = torch.bfloat16 if narrow else torch.float32
    return x.new_empty(len(x), sum(len(weight) for weight in weights), dtype=dtype)


def _outlines_of_gradients(
    dy: Tensor, x: Tensor, weights: Sequence[Tensor], of_x: bool, of_weights: bool
) -> tuple[Tensor, Tensor, Tensor]:
    rows, d_out = (len(x) if of_x else 0), (dy.shape[1] if of_weights else 0)
    dx = x.new_empty(rows, x.shape[1])
    dw = x.new_empty(d_out, x.shape[1], dtype=torch.float32)
    return dx, dw, dw.new_empty(d_out)


torch.library.impl("addnorm::linear", "Meta")(_outline)
torch.library.impl("addnorm::linear_backward", "Meta")(_outlines_of_gradients)


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


_gradients: Any = torch.ops.addnorm.linear_backward


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, n_weights: int, narrow: bool, *parameters: Tensor) -> Tensor:
        weights, biases = parameters[:n_weights], parameters[n_weights:]
        of_x, _, _, *of_parameters = ctx.needs_input_grad
        of_weights = any(of_parameters[:n_weights])
        ctx.save_for_backward(x if of_weights else None, *(weights if of_x else ()))
        ctx.sizes, ctx.d_in, ctx.dtype = [len(weight) for weight in weights], x.shape[1], x.dtype
        return torch.ops.addnorm.linear(x, weights, biases or None, narrow)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, *weights = ctx.saved_tensors
        of_x, _, _, *of_parameters = ctx.needs_input_grad
        of_weights, of_biases = of_parameters[: len(ctx.sizes)], of_parameters[len(ctx.sizes) :]
        dy = grads[0].contiguous()
        if x is None:  # of which only sizes are asked for, as of weights
            x = dy.new_empty(len(dy), ctx.d_in, dtype=ctx.dtype)
        x, *weights = (t.contiguous() for t in (x, *weights))
        weights = weights or [dy.new_empty(dy.shape[1], ctx.d_in, dtype=torch.float32)]
        if is_differentiated() or _is_batched(dy):
            dx, dw, db = _definition(dy, x, torch.cat(weights))
        else:
            dx, dw, db = _gradients(dy, x, weights, of_x, any(of_weights))
            if any(of_biases) and not any(of_weights):  # by a product as narrow as possible
                narrow = [t.new_empty(len(t), 1) for t in (x, *weights)]
                *_, db = _gradients(dy, narrow[0], narrow[1:], False, True)
        wanted: list[Tensor | None] = []
        for part, needs in ((dw, of_weights), (db, of_biases)):
            parts = part.split(ctx.sizes) if any(needs) else (None,) * len(needs)
            wanted += (t if need else None for t, need in zip(parts, needs, strict=True))
        return dx if of_x else None, None, None, *wanted


def _definition(dy: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by torch, with gradients of their own."""
    dx, dw = dy @ weight.to(dy.dtype), dy.t() @ x.to(dy.dtype)
    return dx.to(x.dtype), dw.to(weight.dtype), dy.sum(0, dtype=weight.dtype)


def _is_batched(dy: Tensor) -> bool:
    """Whether these are several gradients at once; torch has no rule for an operator of lists."""
    compiling = torch.compiler.is_compiling()
    return not compiling and torch._C._functorch.is_legacy_batchedtensor(dy)  # pyright: ignore
