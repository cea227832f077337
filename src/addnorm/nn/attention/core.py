"""The attention core: the one seam where kernels, score functions and inspection attach.

A core maps projected heads to mixed heads, `core(q, k, v, mask, bias)`. It gets the mask already
evaluated, shares each key/value head among `heads / kv_heads` query heads, and gives zeros, with
zero gradient, to a query that may attend to nothing. A mask or a bias that would need memory
quadratic in the length is evaluated tile by tile (see `tiles`).
"""

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn import functional
from addnorm.nn.attention.blocked import blocked_attention, use_blocked_attention
from addnorm.nn.attention.flex import fused_flex_attention
from addnorm.nn.attention.scores import Additive, DotProduct, Score
from addnorm.nn.attention.tiles import in_tiles, is_tiled
from addnorm.nn.dropout import Dropout
from addnorm.nn.masks import Causal, Dense, Evaluated, Full, Tiled
from addnorm.nn.positions.position import Bias, PairBias
from addnorm.nn.types import Keys, Queries

BiasTensor = Float[Tensor, "#batch #heads q_seq kv_seq"]

EVERYTHING = slice(None)

FEW = 8
"""Queries up to which plain products read the keys faster than the fused kernel in float32."""

SHORT = 1024
"""Keys up to which plain products train faster than torch's fused kernel in bfloat16 on a CPU.

They round scores to bfloat16, as autocast rounds all products; a model that is itself in bfloat16
keeps the kernel, which does not. `docs/speed.md` has the figures; larger ones go through `blocked`.
"""


class SDPACore(nn.Module):
    """`softmax(scale · kᵀ W q + bias) v` by torch's fused kernels (Dao et al. 2022, alg. 1)."""

    def __init__(self, score: DotProduct | None = None, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.score = score
        self.dropout = dropout

    def forward(
        self, q: Queries, k: Keys, v: Keys, mask: Evaluated, bias: Bias | None = None
    ) -> Queries:
        q = q if self.score is None else self.score.queries(q)
        if is_tiled(q, k, mask, bias):
            return in_tiles(self.attend, q, k, v, mask, bias)
        return self.attend(q, k, v, mask, None if bias is None else bias(EVERYTHING, EVERYTHING))

    def attend(
        self, q: Queries, k: Keys, v: Keys, mask: Evaluated, bias: BiasTensor | None
    ) -> Queries:
        """One call of the kernel, on queries that the score has already mapped."""
        if _prefers_products(q, k):
            one = torch.compiler.is_exporting() and q.shape[2] == 1  # loops: keys in any type cost
            wide = torch.float32 if one else q.dtype  # the same, and scores need not be rounded
            mixed = self.products(q.to(wide), k.to(wide), v.to(wide), mask, bias)
            return mixed.to(q.dtype)
        causal = isinstance(mask, Causal) and bias is None
        allowed = None if causal else _allowed(mask, q, k)
        bias = None if bias is None else bias.to(q.dtype)
        if bias is not None and allowed is not None:
            allowed = bias.masked_fill(~allowed, float("-inf"))
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=bias if allowed is None else allowed,
            is_causal=causal,
            dropout_p=self.dropout if self.training else 0.0,
            scale=None if self.score is None else self.score.scale,
            enable_gqa=q.shape[1] != k.shape[1],
        )

    def products(
        self, q: Queries, k: Keys, v: Keys, mask: Evaluated, bias: BiasTensor | None
    ) -> Queries:
        """The same in plain products, in the type of the queries."""
        scale = None if self.score is None else self.score.scale
        q = q * (q.shape[-1] ** -0.5 if scale is None else scale)
        k, v = _shared(k, q.shape[1]), _shared(v, q.shape[1])
        allowed, p = _allowed(mask, q, k), self.dropout if self.training else 0.0
        # A sum with a floor, for filling all scores of all heads takes longer.
        if bias is None and use_blocked_attention(q, k):
            floor = None if allowed is None else _floor(allowed, q.dtype)
            mixed = blocked_attention(q, k, v, floor, p)
        else:
            scores = q @ k.mT
            scores = scores if bias is None else scores + bias.to(q.dtype)
            scores = scores if allowed is None else scores + _floor(allowed, q.dtype)
            # In float32, or a weight near one would be one, and teach nothing.
            weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)
            mixed = F.dropout(weights, p) @ v
        if isinstance(mask, Dense | Tiled) and allowed is not None:  # some may see nothing
            mixed = mixed.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
        return mixed


NOT_FUSED = (
    "no fused kernel computes additive or capped scores: leave core unset, or use kind = 'eager'"
)


@config
class SDPACoreConfig:
    """torch's fused kernels; for scores that are dot products."""

    kind: Literal["sdpa"] = "sdpa"

    def build(self, dropout: float, score: Score) -> SDPACore:
        return SDPACore(_fused(score), dropout=dropout)


class FlexCore(SDPACore):
    """`softmax(scale · kᵀ W q + bias) v` on a GPU in one kernel (Dong et al. 2024, §3).

    For any mask, ALiBi's bias and T5's. What that kernel does not do is done as `SDPACore` does it:
    dropout, a bias that a pair does not give for itself (Transformer-XL), and all on a CPU.
    """

    def forward(
        self, q: Queries, k: Keys, v: Keys, mask: Evaluated, bias: Bias | None = None
    ) -> Queries:
        dropped = self.training and self.dropout > 0.0
        if q.device.type == "cpu" or dropped or not isinstance(bias, PairBias | None):
            return super().forward(q, k, v, mask, bias)
        return self.fused(q, k, v, mask, bias)

    def fused(
        self, q: Queries, k: Keys, v: Keys, mask: Evaluated, bias: PairBias | None = None
    ) -> Queries:
        """By the kernel."""
        if self.score is None:
            return fused_flex_attention(q, k, v, mask, bias)
        q, scale = self.score.queries(q), self.score.scale
        return fused_flex_attention(q, k, v, mask, bias, scale)


@config
class FlexCoreConfig:
    """FlexAttention on a GPU, with memory linear in the length for every mask, ALiBi and T5."""

    kind: Literal["flex"] = "flex"

    def build(self, dropout: float, score: Score) -> FlexCore:
        return FlexCore(_fused(score), dropout=dropout)


class EagerCore(nn.Module):
    """`softmax(score(q, k) + bias) v` in plain products (Vaswani et al. 2017, eq. 1).

    The reference; it shows its weights. Without a `score` it is the scaled dot product.
    """

    def __init__(self, score: Score | None = None, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.score = functional.scaled_dot_scores if score is None else score
        self.weights_dropout = Dropout(dropout)

    def forward(
        self, q: Queries, k: Keys, v: Keys, mask: Evaluated, bias: Bias | None = None
    ) -> Queries:
        width = q.shape[-1] if isinstance(self.score, Additive) else 1
        if is_tiled(q, k, mask, bias, width):
            return in_tiles(self.attend, q, k, v, mask, bias, width)
        return self.attend(q, k, v, mask, None if bias is None else bias(EVERYTHING, EVERYTHING))

    def attend(
        self, q: Queries, k: Keys, v: Keys, mask: Evaluated, bias: BiasTensor | None
    ) -> Queries:
        """The definition, all at once."""
        weights = self.weights_dropout(self._weights(q, k, mask, bias))
        return weights @ _shared(v, q.shape[1])

    def weights(
        self, q: Queries, k: Keys, mask: Evaluated, bias: Bias | None = None
    ) -> Float[Tensor, "batch heads q_seq kv_seq"]:
        """How much each query looks at each key: rows sum to one, or to zero if all is masked."""
        return self._weights(q, k, mask, None if bias is None else bias(EVERYTHING, EVERYTHING))

    def _weights(
        self, q: Queries, k: Keys, mask: Evaluated, bias: BiasTensor | None
    ) -> Float[Tensor, "batch heads q_seq kv_seq"]:
        scores = self.score(q, _shared(k, q.shape[1]))
        scores = scores if bias is None else scores + bias.to(scores.dtype)
        return functional.masked_softmax(scores, _allowed(mask, q, k))


@config
class EagerCoreConfig:
    """Plain products; on a CPU also the faster one where attention has dropout."""

    kind: Literal["eager"] = "eager"

    def build(self, dropout: float, score: Score) -> EagerCore:
        return EagerCore(score, dropout=dropout)


CoreConfig = Annotated[
    SDPACoreConfig | FlexCoreConfig | EagerCoreConfig, Field(discriminator="kind")
]
"""Every attention core there is."""


def _fused(score: Score) -> DotProduct:
    """A score that fused kernels compute. Raises `ValueError` for another."""
    if not isinstance(score, DotProduct) or score.softcap is not None:
        raise ValueError(NOT_FUSED)
    return score


def _prefers_products(q: Queries, k: Keys) -> bool:
    """Whether plain products are the faster ones, of a few queries or of short texts."""
    if q.device.type != "cpu":
        return False
    if torch.compiler.is_compiling():
        few = type(q.shape[2]) is int and q.shape[2] <= FEW  # not a symbol
        return torch.compiler.is_exporting() and few
    if q.dtype is torch.float32:
        return q.shape[2] <= FEW
    autocast = q.dtype is torch.bfloat16 and torch.is_autocast_enabled("cpu")
    return autocast and q.shape[2] > 1 and k.shape[2] <= SHORT


def _allowed(mask: Evaluated, q: Queries, k: Keys) -> Tensor | None:
    """The evaluated mask as a tensor, or None where everything is allowed."""
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
    """0 where a query may look; elsewhere so low that exp gives 0, and finite even in a sum."""
    lowest = torch.finfo(dtype).min / 2
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, lowest)


def _shared(kv: Keys, n_heads: int) -> Float[Tensor, "batch heads kv_seq d_head"]:
    """Each key/value head repeated for its group of query heads (Ainslie et al. 2023, GQA)."""
    repeats = n_heads // kv.shape[1]
    return kv if repeats == 1 else kv.repeat_interleave(repeats, dim=1)
