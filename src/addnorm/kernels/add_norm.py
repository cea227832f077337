"""Dropout, the residual sum and its norm in one pass, forward and backward, by our operator.

torch takes a pass over memory for the random numbers, each step of the mask, the product, the sum
and the norm. The operator is for float32 on a CPU, with a sublayer in float32 or bfloat16.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from addnorm.kernels.derivatives import gradients, is_differentiated

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
    return _AddNorm.apply(f, x, gain, bias, _Options(centred, eps, p, seed))[0]  # pyright: ignore[reportOptionalSubscript]


class _AddNorm(torch.autograd.Function):
    """The norm and, for second derivatives alone, the sum."""

    @staticmethod
    def forward(
        ctx: Any, f: Tensor, x: Tensor, gain: Tensor | None, bias: Tensor | None, options: _Options
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        rows = (t.reshape(-1, x.shape[-1]).contiguous() for t in (f, x))
        weights = (None if t is None else t.contiguous() for t in (gain, bias))
        y, s, statistics = torch.ops.addnorm.add_norm(*rows, *weights, *options)
        s = s.view(x.shape)
        ctx.save_for_backward(s, statistics, gain, bias)
        ctx.options, ctx.dtype = options, f.dtype
        return y.view(x.shape), s

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        s, statistics, gain, bias = ctx.saved_tensors
        dy, ds = grads
        if dy is None or ds is not None or is_differentiated():
            return *_by_definition(ctx.options, ctx.dtype, (s, gain, bias), dy, ds), None
        centred, _, p, seed = ctx.options
        rows = s.view(-1, s.shape[-1])
        df, dx, sums = torch.ops.addnorm.add_norm_backward(
            dy.reshape(rows.shape).contiguous(),
            rows,
            statistics,
            None if gain is None else gain.contiguous(),
            centred,
            rows.new_empty(rows.shape, dtype=ctx.dtype),
            p,
            seed,
        )
        of_gain, of_bias = (None if t is None else sums[i] for i, t in enumerate((gain, bias)))
        return df.view(s.shape), dx.view(s.shape), of_gain, of_bias, None


def _by_definition(
    options: _Options,
    dtype: torch.dtype,
    inputs: tuple[Tensor, Tensor | None, Tensor | None],
    dy: Tensor | None,
    ds: Tensor | None,
) -> tuple[Tensor | None, ...]:
    """The gradients by torch, with gradients of their own, also for a gradient `ds` of the sum."""
    s, *_ = inputs
    width, eps = s.shape[-1:], options.eps

    def norm(s: Tensor, gain: Tensor | None, bias: Tensor | None) -> Tensor:
        if options.centred:
            return F.layer_norm(s, width, gain, bias, eps)
        y = F.rms_norm(s, width, gain, eps)
        return y if bias is None else y + bias

    dx, of_gain, of_bias = [None] * 3 if dy is None else gradients(norm, inputs, dy)
    dx = torch.stack([each for each in (dx, ds) if each is not None]).sum(0)
    ones, zeros = (make(s.view(-1, *width)) for make in (torch.ones_like, torch.zeros_like))
    _, mask, _ = torch.ops.addnorm.add_norm(ones, zeros, None, None, *options)
    return (dx * mask.view(s.shape)).to(dtype), dx, of_gain, of_bias
