"""Dropout, the residual sum and its norm in one pass, forward and backward, by our operator.

torch takes a pass over memory for the random numbers, each step of the mask, the product, the sum
and the norm. The operator is for float32 on a CPU, with a sublayer in float32 or bfloat16.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

OPERATOR = "add_norm"

DTYPES = (torch.float32, torch.bfloat16)
"""The types of a sublayer's output."""

torch.library.define(
    "addnorm::add_norm",
    "(Tensor f, Tensor x, Tensor? gain, Tensor? bias, bool centred, float eps, float p, int seed)"
    " -> (Tensor, Tensor, Tensor)",
)
torch.library.define(
    "addnorm::add_norm_backward",
    "(Tensor dy, Tensor s, Tensor statistics, Tensor? gain, bool centred, Tensor like, float p,"
    " int seed) -> (Tensor, Tensor, Tensor)",
)


class _Options(NamedTuple):
    centred: bool
    eps: float
    p: float
    seed: int


def add_norm(
    f: Float[Tensor, "*batch d_model"],
    x: Float[Tensor, "*batch d_model"],
    gain: Float[Tensor, " d_model"] | None,
    bias: Float[Tensor, " d_model"] | None,
    *,
    centred: bool,
    eps: float,
    p: float,
) -> Float[Tensor, "*batch d_model"]:
    """`norm(x + drop(f))`: LayerNorm, or RMSNorm if not `centred`.

    The mask is a function of one number from torch's generator.
    """
    seed = int(torch.randint(2**62, (), device="cpu")) if p else 0
    return _AddNorm.apply(f, x, gain, bias, _Options(centred, eps, p, seed))  # pyright: ignore[reportReturnType]


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, f: Tensor, x: Tensor, gain: Tensor | None, bias: Tensor | None, options: _Options
    ) -> Tensor:
        rows = (t.reshape(-1, x.shape[-1]).contiguous() for t in (f, x))
        y, s, statistics = torch.ops.addnorm.add_norm(*rows, gain, bias, *options)
        ctx.save_for_backward(s, statistics, gain)
        ctx.options, ctx.dtype, ctx.has_bias = options, f.dtype, bias is not None
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        s, statistics, gain = ctx.saved_tensors
        centred, _, p, seed = ctx.options
        dy, like = grads[0].reshape(s.shape).contiguous(), s.new_empty(s.shape, dtype=ctx.dtype)
        df, dx, sums = torch.ops.addnorm.add_norm_backward(
            dy, s, statistics, gain, centred, like, p, seed
        )
        of_gain, of_bias = (None if gain is None else sums[0]), (sums[1] if ctx.has_bias else None)
        return df.view(grads[0].shape), dx.view(grads[0].shape), of_gain, of_bias, None
