"""Attention in bfloat16 with gradients, by our operators, which keep their scores in the cache.

Those of torch's fused kernel leave it: its output takes three times as long, its gradient five.
"""

import math
from functools import partial
from typing import Any

import torch
from jaxtyping import BFloat16
from torch import Tensor

from addnorm.kernels.derivatives import gradients, is_differentiated

OPERATOR = "attention_backward"
FORWARD = "attention_forward"

torch.library.define(
    "addnorm::attention_forward",
    "(Tensor q, Tensor k, Tensor v, bool causal, float scale) -> (Tensor, Tensor)",
)
torch.library.define(
    "addnorm::attention_backward",
    "(Tensor dy, Tensor q, Tensor k, Tensor v, Tensor y, Tensor log_sums, bool causal, float scale)"
    " -> (Tensor, Tensor, Tensor)",
)


def _outlines(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    batch, q_seq, heads, _ = q.shape
    return q.new_empty(q.shape), q.new_empty(batch, heads, q_seq, dtype=torch.float32)


def _outlines_of_gradients(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *others: object
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


torch.library.impl("addnorm::attention_forward", "Meta")(_outlines)
torch.library.impl("addnorm::attention_backward", "Meta")(_outlines_of_gradients)


def attention(
    q: BFloat16[Tensor, "batch heads q_seq d_head"],
    k: BFloat16[Tensor, "batch heads kv_seq d_head"],
    v: BFloat16[Tensor, "batch heads kv_seq d_head"],
    *,
    causal: bool,
    scale: float,
    by_torch: bool = False,
) -> BFloat16[Tensor, "batch heads q_seq d_head"]:
    """`softmax(scale · q kᵀ) v` over all keys, or over those up to the query's place.

    Scores and sums are in float32, weights are rounded. Lengths and `d_head` are even, since
    products read pairs of rows. With `causal`, there are as many keys as queries. With `by_torch`,
    the output is that of torch's kernel, and only its gradient is ours.
    """
    return _Attention.apply(q, k, v, causal, scale, by_torch)  # pyright: ignore[reportReturnType]


def definition(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float) -> Tensor:
    """`softmax(scale · q kᵀ) v` in float32, by products of torch."""
    scores = scale * (q.float() @ k.float().mT)
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
    return (scores.softmax(-1) @ v.float()).to(q.dtype)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, by_torch: bool
    ) -> Tensor:
        inputs = [_in_pairs(x) for x in (q, k, v)]  # torch's kernel reads adjacent numbers, too
        if by_torch:
            y, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                *inputs, 0.0, causal, scale=scale
            )
        else:
            rows = (x.transpose(1, 2) for x in inputs)
            y, log_sums = torch.ops.addnorm.attention_forward(*rows, causal, scale)
            y = y.transpose(1, 2)
        ctx.save_for_backward(q, k, v, y, log_sums)
        ctx.causal, ctx.scale = causal, scale
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, y, log_sums = ctx.saved_tensors
        if is_differentiated():
            define = partial(definition, causal=ctx.causal, scale=ctx.scale)
            return *gradients(define, (q, k, v), grads[0]), None, None, None
        rows = (_in_pairs(x).transpose(1, 2) for x in (grads[0], q, k, v, y))
        dq_dk_dv = torch.ops.addnorm.attention_backward(
            *rows, log_sums.contiguous(), ctx.causal, ctx.scale
        )
        return *(x.transpose(1, 2) for x in dq_dk_dv), None, None, None


def _in_pairs(x: Tensor) -> Tensor:
    """The heads, copied if the features of a head are not adjacent in pairs."""
    is_paired = x.stride(3) == 1 and not any(n % 2 for n in x.stride()[:3])
    return x if is_paired else x.contiguous()
