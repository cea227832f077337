"""Causal attention in float32 with gradients, by our operator, whose scores stay in the cache.

torch's fused kernel also computes most scores that the mask leaves out.
"""

from functools import partial
from typing import Any

import torch
from jaxtyping import Float32
from torch import Tensor

from addnorm.kernels.attention import definition
from addnorm.kernels.derivatives import gradients, is_differentiated

OPERATOR = "causal_attention"

torch.library.define(
    "addnorm::causal_attention",
    "(Tensor q, Tensor k, Tensor v, float scale) -> Tensor",
)
torch.library.define(
    "addnorm::causal_attention_backward",
    "(Tensor dy, Tensor q, Tensor k, Tensor v, float scale) -> (Tensor, Tensor, Tensor)",
)


def _outline(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    return q.new_empty(q.shape)


def _outlines_of_gradients(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


torch.library.impl("addnorm::causal_attention", "Meta")(_outline)
torch.library.impl("addnorm::causal_attention_backward", "Meta")(_outlines_of_gradients)


def causal_attention(
    q: Float32[Tensor, "batch heads seq d_head"],
    k: Float32[Tensor, "batch heads seq d_head"],
    v: Float32[Tensor, "batch heads seq d_head"],
    *,
    scale: float,
) -> Float32[Tensor, "batch heads seq d_head"]:
    """`softmax(scale · q kᵀ) v` over the keys up to the query's place."""
    return _CausalAttention.apply(q, k, v, scale)  # pyright: ignore[reportReturnType]


class _CausalAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.scale = scale
        return torch.ops.addnorm.causal_attention(*map(_rows, (q, k, v)), scale).transpose(1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dy, saved = grads[0], ctx.saved_tensors
        if is_differentiated():
            define = partial(definition, causal=True, scale=ctx.scale)
            return *gradients(define, saved, dy), None
        dq_dk_dv = torch.ops.addnorm.causal_attention_backward(*map(_rows, (dy, *saved)), ctx.scale)
        return *(x.transpose(1, 2) for x in dq_dk_dv), None


def _rows(x: Tensor) -> Tensor:
    """The heads of each token, copied if the features of a head are not adjacent."""
    return (x if x.stride(3) == 1 else x.contiguous()).transpose(1, 2)
