"""Scaled dot-product attention by torch's fused kernels or by plain matrix products.

Both compute the same function; which is faster depends on the device, the dtype and the sizes.

Plain products in bfloat16 on a CPU are computed in blocks of a few heads. The scores are the
largest tensor in attention, and moving them to and from memory takes longer than the matrix
products; scores, softmax and weighted sum of a block stay in the same few megabytes. Nothing
quadratic is saved for the backward pass, which recomputes the weights (Dao et al. 2022, §3.1).
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from addnorm.kernels import attention as operator
from addnorm.kernels import causal_attention
from addnorm.kernels.build import is_loaded
from addnorm.nn.choices import DEFAULTS, choices, takes_operators
from addnorm.nn.dropout import keep_mask
from addnorm.nn.functional import once_differentiable, wide_dtype
from addnorm.nn.linear import multiplies_bfloat16
from addnorm.nn.masks import Causal, Dense, Evaluated, Full, Tiled
from addnorm.nn.types import ExpandedKeys, Keys, Mixed, Queries, Values

BiasTensor = Float[Tensor, "#batch #heads q_seq kv_seq"]

EVERYTHING = slice(None)

RIGHT_WITH_MASKS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""The kernels of a GPU that give zero for a query that sees no key; cuDNN's gives other numbers."""

_softmax_gradient: Any = torch.ops.aten._softmax_backward_data.out

Floor = Float[Tensor, "#batch 1 q_seq kv_seq"]

Sinks = Float[Tensor, " heads"]
"""A logit for each head, in the denominator of its softmax alone (see `SinkCore`)."""

MANY_KEYS = 2048
"""Number of keys from which heads that share them read them once, for one query, by products."""

FEW_KEYS, SHORT = 96, 4096
"""Numbers of keys from which the operators are faster, and up to which a block of scores stays in
the cache.
"""

FEW_IN_FLOAT32, SHORT_IN_FLOAT32, NARROW = 64, 512, 128
"""The same of the operator of float32, and the width of heads up to which what it reads again and
again stays in the cache.
"""

AT_ONCE = 2**20
"""Number of scores in one block: 4 MB in float32."""


def dot_product_attention(
    q: Queries,
    k: Keys,
    v: Values,
    mask: Evaluated,
    bias: BiasTensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    sinks: Sinks | None = None,
) -> Mixed:
    """`dropout(softmax(scale · q kᵀ + bias)) v` by the fastest available kernel.

    `scale` is by default 1/√d_head. Vaswani et al. 2017, eq. 1; Dao et al. 2022, alg. 1. With
    `sinks` the softmax has one more score, whose value is zero (see `SinkCore`).
    """
    if sinks is None and bias is None and not dropout and (by := _operator(q, k, v, mask)):
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        return by(q, k, v, scale=factor)
    if prefers_products(q, k):
        # A single query is read only once, so a wider dtype costs nothing and rounds less.
        single = torch.compiler.is_exporting() and q.shape[2] == 1
        wide = torch.float32 if single else q.dtype
        mixed = plain_products(
            *(q.to(wide), k.to(wide), v.to(wide), mask, bias),
            scale=scale,
            dropout=dropout,
            sinks=sinks,
        )
        return mixed.to(q.dtype)
    if sinks is not None:
        return _with_sink_slot(q, k, v, mask, bias, scale=scale, dropout=dropout, sinks=sinks)
    causal = isinstance(mask, Causal) and bias is None
    allowed = None if causal else allowed_of(mask, q, k)
    bias = None if bias is None else bias.to(q.dtype)
    if bias is not None and allowed is not None:
        allowed = bias.masked_fill(~allowed, float("-inf"))
    seen = bias if allowed is None else allowed
    with nullcontext() if seen is None or not q.is_cuda else sdpa_kernel(RIGHT_WITH_MASKS):
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=seen,
            is_causal=causal,
            dropout_p=dropout,
            scale=scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )


def _with_sink_slot(
    q: Queries,
    k: Keys,
    v: Values,
    mask: Evaluated,
    bias: BiasTensor | None,
    *,
    scale: float | None,
    dropout: float,
    sinks: Sinks,
) -> Mixed:
    """Attention with sinks by fused kernels: with a slot in front whose score is the sink.

    Queries get a feature `s / scale`, which is one in the key of the slot and zero in all others;
    the slot's value is zero. Its own query, which keeps a causal mask causal, is dropped.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    feature = (sinks / factor).to(q.dtype)[:, None, None].expand(*q.shape[:3], 1)
    q = F.pad(torch.cat([q, feature], dim=-1), (0, 0, 1, 0))
    k = torch.cat([_slot_key(k), F.pad(k, (0, 1))], dim=2)
    if not isinstance(mask, Full | Causal) and (allowed := allowed_of(mask, q, k)) is not None:
        mask = Dense(F.pad(allowed, (1, 0, 1, 0), value=True))
    bias = None if bias is None else F.pad(bias, (1, 0, 1, 0))
    v = F.pad(v, (0, 0, 1, 0))
    return dot_product_attention(q, k, v, mask, bias, scale=factor, dropout=dropout)[:, :, 1:]


def _slot_key(k: Keys) -> Float[Tensor, "batch kv_heads 1 wider"]:
    """The key of the slot: zero but for the last feature, which is one."""
    return F.pad(k.new_ones(*k.shape[:2], 1, 1), (k.shape[3], 0))


def plain_products(
    q: Queries,
    k: Keys,
    v: Values,
    mask: Evaluated,
    bias: BiasTensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
    sinks: Sinks | None = None,
) -> Mixed:
    """Compute `dot_product_attention` by plain matrix products, the softmax in at least float32."""
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    allowed = allowed_of(mask, q, k)
    # Adding a floor is faster than `masked_fill` on the scores of all heads.
    if bias is None and sinks is None and use_blocked_attention(q, k):
        floor = None if allowed is None else _floor(allowed, q.dtype)
        k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
        mixed = blocked_attention(q, k, v, floor, dropout)
    else:
        scores = grouped_product(q, k.mT)
        scores = scores if bias is None else scores + bias.to(q.dtype)
        scores = scores if allowed is None else scores + _floor(allowed, q.dtype)
        # In float32, because a weight near one would round to one and have no gradient.
        wide = wide_dtype(q.dtype)
        weights = softmax_with_sinks(scores, sinks, wide).to(q.dtype)
        mixed = grouped_product(F.dropout(weights, dropout), v)
    if isinstance(mask, Dense | Tiled) and allowed is not None:  # some queries may be fully masked
        mixed = mixed.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return mixed


def softmax_with_sinks(
    scores: Float[Tensor, "batch heads q_seq kv_seq"], sinks: Sinks | None, dtype: torch.dtype
) -> Float[Tensor, "batch heads q_seq kv_seq"]:
    """`exp(scores) / (e^s + Σ exp(scores))` with the sink `s` of each head; without one if None."""
    if sinks is None:
        return scores.softmax(-1, dtype=dtype)
    column = sinks.to(dtype)[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat([scores.to(dtype), column], dim=-1).softmax(-1)[..., :-1]


def grouped_product(
    x: Float[Tensor, "batch heads q_seq inner"], y: Float[Tensor, "batch kv_heads inner outer"]
) -> Float[Tensor, "batch heads q_seq outer"]:
    """`x y`, with the heads of a group as rows of one matrix, so that `y` is not repeated."""
    n_kv_heads = y.shape[1]
    if x.shape[1] == n_kv_heads:
        return x @ y
    group = x.shape[1] // n_kv_heads
    rows = x.unflatten(1, (n_kv_heads, group)).flatten(2, 3)
    return (rows @ y).unflatten(2, (group, -1)).flatten(1, 2)


def _operator(q: Queries, k: Keys, v: Values, mask: Evaluated) -> Callable[..., Tensor] | None:
    """The operator of ours that trains this attention faster, if there is one."""
    if not _is_simple(q, k, v, mask):
        return None
    if (
        q.dtype is torch.bfloat16
        and FEW_KEYS <= k.shape[2] <= SHORT
        and not any(n % 2 for n in (*q.shape[2:], k.shape[2]))
        and choices().attention == "operator"
        and is_loaded(operator.OPERATOR)
    ):
        ours = choices().attention_forward == "operator" and is_loaded(operator.FORWARD)
        return partial(operator.attention, causal=isinstance(mask, Causal), by_torch=not ours)
    if (
        q.dtype is torch.float32
        and isinstance(mask, Causal)
        and FEW_IN_FLOAT32 <= k.shape[2] <= SHORT_IN_FLOAT32
        and q.shape[3] <= NARROW
        and not torch.is_autocast_enabled("cpu")
        and choices().causal_attention == "operator"
        and is_loaded(causal_attention.OPERATOR)
    ):
        return causal_attention.causal_attention
    return None


def _is_simple(q: Queries, k: Keys, v: Values, mask: Evaluated) -> bool:
    """Whether these are trained on a CPU, and have a mask, heads and widths that operators know."""
    return (
        takes_operators(q, k, v)
        and q.dtype is k.dtype is v.dtype
        and q.shape[:2] == k.shape[:2]
        and q.shape[3] == k.shape[3]
        and k.shape == v.shape
        and (isinstance(mask, Full) or (isinstance(mask, Causal) and q.shape[2] == k.shape[2]))
        and torch.is_grad_enabled()
        and any(x.requires_grad for x in (q, k, v))
    )


def prefers_products(q: Queries, k: Keys) -> bool:
    """Whether plain products are faster than the fused kernel: few queries or short sequences.

    The fused kernel reads keys that heads share once for each head, products once for all.
    """
    if q.device.type != "cpu":
        return False
    if torch.compiler.is_exporting():
        return type(q.shape[2]) is int and q.shape[2] <= DEFAULTS.few_queries  # no symbol
    if q.dtype is torch.float32:
        once = q.shape[2] == 1 and k.shape[1] < q.shape[1] and k.shape[2] >= MANY_KEYS
        few = once or q.shape[2] <= choices().few_queries
        return few and not torch.compiler.is_compiling()
    autocast = q.dtype is torch.bfloat16 and torch.is_autocast_enabled("cpu")
    # A compiler makes one loop of scale, mask and softmax, which eager measurements do not show.
    fused = 256 if torch.compiler.is_compiling() and multiplies_bfloat16 else 0
    return autocast and q.shape[2] > 1 and k.shape[2] <= max(fused, choices().short_keys)


def allowed_of(mask: Evaluated, q: Queries, k: Keys) -> Tensor | None:
    """The evaluated mask as a boolean tensor; None where everything is allowed."""
    match mask:
        case Full():
            return None
        case Causal():
            return q.new_ones(1, 1, q.shape[2], k.shape[2]).tril().bool()
        case Dense(allowed):
            return allowed
        case Tiled():
            return mask.tile(EVERYTHING, EVERYTHING).allowed


def _floor(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a query may attend, elsewhere so low that exp gives 0, yet finite after addition."""
    lowest = torch.finfo(dtype).min / 2
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, lowest)


def shared(
    kv: Keys, n_heads: int, *, together: int = 1
) -> Float[Tensor, "batch heads kv_seq d_head"]:
    """Repeat each key/value head for its group of query heads (Ainslie et al. 2023, GQA).

    Where a core computes `together` heads as one, these units are repeated.
    """
    repeats = n_heads // kv.shape[1]
    if repeats == 1:
        return kv
    units = kv.unflatten(1, (-1, together))
    return units.repeat_interleave(repeats, dim=1).flatten(1, 2)


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
    keep = keep_mask(pairs, dropout) if dropout else None
    return _BlockedAttention.apply(q, k, v, floor, keep)  # pyright: ignore[reportReturnType]


class _BlockedAttention(torch.autograd.Function):
    """Forward and backward passes over the heads of all rows, a few heads at a time."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, floor: Tensor | None, keep: Tensor | None
    ) -> Tensor:
        ctx.heads, ctx.groups = q.shape[:2], list(_groups(q, k))
        q, k, v = (x.flatten(0, 1).contiguous() for x in (q, k, v))
        ctx.save_for_backward(q, k, v, floor, keep)
        mixed, buffer = (
            q.new_empty(*q.shape[:2], v.shape[2]),
            _score_buffer(ctx.groups, q, k, q.dtype),
        )
        for at, rows in ctx.groups:
            weights = torch.bmm(q[at], k[at].mT, out=buffer[: q[at].shape[0]])
            torch.softmax(_lowered(weights, floor, rows), -1, out=weights)
            torch.bmm(_dropped(weights, keep, at), v[at], out=mixed[at])
        return mixed.unflatten(0, ctx.heads)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, dy: Tensor
    ) -> tuple[Tensor | None, ...]:
        q, k, v, floor, keep = ctx.saved_tensors
        dy = dy.flatten(0, 1).contiguous()
        dq, dk, dv = (torch.empty_like(x) for x in (q, k, v))
        buffers = [
            _score_buffer(ctx.groups, q, k, t) for t in (q.dtype, torch.float32, torch.float32)
        ]
        for at, rows in ctx.groups:
            narrow, weights, ds = (buffer[: q[at].shape[0]] for buffer in buffers)
            weights.copy_(torch.bmm(q[at], k[at].mT, out=narrow))
            torch.softmax(_lowered(weights, floor, rows), -1, out=weights)
            ds.copy_(_dropped(torch.bmm(dy[at], v[at].mT, out=narrow), keep, at))
            _softmax_gradient(ds, weights, -1, torch.float32, grad_input=ds)
            torch.bmm(_dropped(narrow.copy_(weights), keep, at).mT, dy[at], out=dv[at])
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
    """Add the floor to the scores in place."""
    if floor is not None:
        floor = floor if floor.shape[0] == 1 else floor[rows]
        scores.unflatten(0, (floor.shape[0], -1)).add_(floor)
    return scores


def _dropped(weights: Tensor, keep: Tensor | None, at: slice) -> Tensor:
    """Multiply the weights by the dropout mask in place."""
    return weights if keep is None else weights.mul_(keep[at])
