"""Scaled dot-product attention by torch's fused kernels or by plain matrix products.

Both compute the same function; which is faster depends on the device, the dtype and the sizes.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from addnorm.nn.attention.blocked import blocked_attention, use_blocked_attention
from addnorm.nn.choices import DEFAULTS, choices
from addnorm.nn.linear import multiplies_bfloat16
from addnorm.nn.masks import Causal, Dense, Evaluated, Full, Tiled
from addnorm.nn.types import Keys, Mixed, Queries, Values

BiasTensor = Float[Tensor, "#batch #heads q_seq kv_seq"]

EVERYTHING = slice(None)


def dot_product_attention(
    q: Queries,
    k: Keys,
    v: Values,
    mask: Evaluated,
    bias: BiasTensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Mixed:
    """`dropout(softmax(scale · q kᵀ + bias)) v` by the fastest available kernel.

    `scale` is by default 1/√d_head. Vaswani et al. 2017, eq. 1; Dao et al. 2022, alg. 1.
    """
    if prefers_products(q, k):
        # A single query is read only once, so a wider dtype costs nothing and rounds less.
        single = torch.compiler.is_exporting() and q.shape[2] == 1
        wide = torch.float32 if single else q.dtype
        mixed = plain_products(
            q.to(wide), k.to(wide), v.to(wide), mask, bias, scale=scale, dropout=dropout
        )
        return mixed.to(q.dtype)
    causal = isinstance(mask, Causal) and bias is None
    allowed = None if causal else allowed_of(mask, q, k)
    bias = None if bias is None else bias.to(q.dtype)
    if bias is not None and allowed is not None:
        allowed = bias.masked_fill(~allowed, float("-inf"))
    return F.scaled_dot_product_attention(
        q,
        k,
        v,
        attn_mask=bias if allowed is None else allowed,
        is_causal=causal,
        dropout_p=dropout,
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def plain_products(
    q: Queries,
    k: Keys,
    v: Values,
    mask: Evaluated,
    bias: BiasTensor | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Mixed:
    """The same by plain matrix products, the softmax in float32 at least."""
    q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
    allowed = allowed_of(mask, q, k)
    # Adding a floor is faster than `masked_fill` on the scores of all heads.
    if bias is None and use_blocked_attention(q, k):
        floor = None if allowed is None else _floor(allowed, q.dtype)
        k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
        mixed = blocked_attention(q, k, v, floor, dropout)
    else:
        scores = _grouped_product(q, k.mT)
        scores = scores if bias is None else scores + bias.to(q.dtype)
        scores = scores if allowed is None else scores + _floor(allowed, q.dtype)
        # In float32, because a weight near one would round to one and have no gradient.
        wide = torch.promote_types(q.dtype, torch.float32)
        weights = scores.softmax(-1, dtype=wide).to(q.dtype)
        mixed = _grouped_product(F.dropout(weights, dropout), v)
    if isinstance(mask, Dense | Tiled) and allowed is not None:  # some queries may be fully masked
        mixed = mixed.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
    return mixed


def _grouped_product(
    x: Float[Tensor, "batch heads q_seq inner"], y: Float[Tensor, "batch kv_heads inner outer"]
) -> Float[Tensor, "batch heads q_seq outer"]:
    """`x y`, the heads of a group side by side as rows, so that what they share is not copied."""
    n_kv_heads = y.shape[1]
    if x.shape[1] == n_kv_heads:
        return x @ y
    group = x.shape[1] // n_kv_heads
    rows = x.unflatten(1, (n_kv_heads, group)).flatten(2, 3)
    return (rows @ y).unflatten(2, (group, -1)).flatten(1, 2)


def prefers_products(q: Queries, k: Keys) -> bool:
    """Whether plain products are faster than the fused kernel: few queries or short sequences."""
    if q.device.type != "cpu":
        return False
    if torch.compiler.is_exporting():
        return type(q.shape[2]) is int and q.shape[2] <= DEFAULTS.few_queries  # no symbol
    if q.dtype is torch.float32:
        return not torch.compiler.is_compiling() and q.shape[2] <= choices().few_queries
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


def shared(kv: Keys, n_heads: int) -> Float[Tensor, "batch heads kv_seq d_head"]:
    """Repeat each key/value head for its group of query heads (Ainslie et al. 2023, GQA)."""
    repeats = n_heads // kv.shape[1]
    return kv if repeats == 1 else kv.repeat_interleave(repeats, dim=1)
