"""Blocked attention in bfloat16 on a CPU: a few heads at a time, so that the scores stay in cache.

The scores are the largest tensor in attention, and moving them to and from memory takes longer than
the matrix products. Here scores, softmax and weighted sum are computed for a few heads at a time in
the same few megabytes. Nothing quadratic is saved for the backward pass, which recomputes the
weights (Dao et al. 2022, §3.1).
"""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from addnorm.nn.choices import choices
from addnorm.nn.dropout import keep_mask
from addnorm.nn.types import ExpandedKeys, Keys, Mixed, Queries

_softmax_gradient: Any = torch.ops.aten._softmax_backward_data.out

Floor = Float[Tensor, "#batch 1 q_seq kv_seq"]

AT_ONCE = 2**20
"""Number of scores in one block: 4 MB in float32."""


def use_blocked_attention(q: Queries, k: Keys) -> bool:
    """Whether blocked attention is faster: bfloat16 on a CPU, scores exceeding its cache."""
    if torch.compiler.is_compiling() or q.device.type != "cpu" or q.dtype is not torch.bfloat16:
        return False
    return q.shape[:3].numel() * k.shape[2] > choices().many_scores


def blocked_attention(
    q: Queries,
    k: ExpandedKeys,
    v: Float[Tensor, "batch heads kv_seq d_value"],
    floor: Floor | None,
    dropout: float = 0.0,
) -> Mixed:
    """`dropout(softmax(q kᵀ + floor)) v`: products in the type of `q`, softmax in float32.

    `floor` is 0 where a query may attend and a large negative number elsewhere; it gets no
    gradient.
    """
    pairs = q.new_empty(()).expand(q.shape[:2].numel(), q.shape[2], k.shape[2])
    kept = keep_mask(pairs, dropout) if dropout else None
    return _BlockedAttention.apply(q, k, v, floor, kept)  # pyright: ignore[reportReturnType]


class _BlockedAttention(torch.autograd.Function):
    """Forward and backward passes over the heads of all rows, a few heads at a time."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, floor: Tensor | None, kept: Tensor | None
    ) -> Tensor:
        ctx.heads, ctx.groups = q.shape[:2], list(_groups(q, k))
        q, k, v = (x.flatten(0, 1).contiguous() for x in (q, k, v))
        ctx.save_for_backward(q, k, v, floor, kept)
        mixed, buffer = (
            q.new_empty(*q.shape[:2], v.shape[2]),
            _score_buffer(ctx.groups, q, k, q.dtype),
        )
        for at, rows in ctx.groups:
            weights = torch.bmm(q[at], k[at].mT, out=buffer[: q[at].shape[0]])
            torch.softmax(_lowered(weights, floor, rows), -1, out=weights)
            torch.bmm(_dropped(weights, kept, at), v[at], out=mixed[at])
        return mixed.unflatten(0, ctx.heads)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy: Tensor
    ) -> tuple[Tensor | None, ...]:
        q, k, v, floor, kept = ctx.saved_tensors
        dy = dy.flatten(0, 1).contiguous()
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        buffers = [
            _score_buffer(ctx.groups, q, k, t) for t in (q.dtype, torch.float32, torch.float32)
        ]
        for at, rows in ctx.groups:
            narrow, weights, ds = (buffer[: q[at].shape[0]] for buffer in buffers)
            weights.copy_(torch.bmm(q[at], k[at].mT, out=narrow))
            torch.softmax(_lowered(weights, floor, rows), -1, out=weights)
            ds.copy_(_dropped(torch.bmm(dy[at], v[at].mT, out=narrow), kept, at))
            _softmax_gradient(ds, weights, -1, torch.float32, grad_input=ds)
            torch.bmm(_dropped(narrow.copy_(weights), kept, at).mT, dy[at], out=dv[at])
            torch.bmm(narrow.copy_(ds), k[at], out=dq[at])
            torch.bmm(narrow.mT, q[at], out=dk[at])
        return *(x.unflatten(0, ctx.heads) for x in (dq, dk, dv)), None, None


def _groups(q: Queries, k: ExpandedKeys) -> Iterator[tuple[slice, slice]]:
    """Yield each block of heads, numbered across all rows, and the batch rows it covers."""
    n_rows, n_heads, n_q, _ = q.shape
    size = max(1, AT_ONCE // (n_q * k.shape[2]))
    rows, heads = max(1, size // n_heads), min(size, n_heads)
    for row in range(0, n_rows, rows):
        end = min(row + rows, n_rows)
        for first in range(row * n_heads, end * n_heads, rows * heads):
            last = min(first + rows * heads, end * n_heads)
            yield slice(first, last), slice(row, end)


def _score_buffer(
    groups: list[tuple[slice, slice]], q: Tensor, k: Tensor, dtype: torch.dtype
) -> Tensor:
    """An uninitialised buffer for the scores of the largest block, which is the first."""
    return q.new_empty(groups[0][0].stop, q.shape[1], k.shape[1], dtype=dtype)


def _lowered(scores: Tensor, floor: Floor | None, rows: slice) -> Tensor:
    """In place."""
    if floor is not None:
        floor = floor if floor.shape[0] == 1 else floor[rows]
        scores.unflatten(0, (floor.shape[0], -1)).add_(floor)
    return scores


def _dropped(weights: Tensor, kept: Tensor | None, at: slice) -> Tensor:
    """In place."""
    return weights if kept is None else weights.mul_(kept[at])
