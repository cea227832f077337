"""Multi-head latent attention: keys and values of all heads are maps of one narrow latent."""

from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import WORD, Probability, config
from addnorm.errors import InputError
from addnorm.nn.attention.core import EagerCore, SDPACore
from addnorm.nn.attention.kernels import grouped_product
from addnorm.nn.attention.patterns import FullPatternConfig, PatternConfig, build_pattern
from addnorm.nn.attention.scores import DotProduct, ScaledDotConfig, is_fused
from addnorm.nn.cache import AttentionCache, SelfCache
from addnorm.nn.context import Context
from addnorm.nn.linear import Linear
from addnorm.nn.masks import Mask
from addnorm.nn.norms import NormConfig, RMSNormConfig, build_norm
from addnorm.nn.positions.position import Bias, Position
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import Heads, HeadShape, Hidden

Latents = Float[Tensor, "batch 1 kv_seq rank"]
SharedKeys = Float[Tensor, "batch 1 kv_seq d_position"]
ContentQueries = Float[Tensor, "batch heads seq d_content"]
PositionQueries = Float[Tensor, "batch heads seq d_position"]
ValueHeads = Float[Tensor, "batch heads seq d_value"]


class LatentAttention(nn.Module):
    """`softmax(([q; q_r] [c W_uk; k_r]ᵀ) / √(d + d_r)) c W_uv W_o`, `c = norm(x W_dkv)`.

    DeepSeek-AI 2024a (DeepSeek-V2), §2.1, eq. 9–19. The latent `c` has width `rank`, and all heads
    share it and one key `k_r = rotate(x W_kr)` that holds the position, as `q_r = rotate(c_q W_qr)`
    does of each query; the norm covers the latent alone. With a `query_rank` the queries too are
    maps of a latent, `c_q = norm(x W_dq)`. The cache holds `c` and `k_r`. A few new tokens read it
    as it is (`absorbed`), many expand it first (`expanded`); both are equal up to rounding.
    """

    output_weights = ("out_proj",)
    deepnorm_weights = ("v_up_proj", "out_proj")
    splits: ClassVar[Splits] = {
        "q_up_proj": Split(0, "n_heads"),
        "k_up_proj": Split(0, "n_heads"),
        "v_up_proj": Split(0, "n_heads"),
        "out_proj": Split(1, "n_heads"),
    }

    def __init__(
        self, d_model: int, settings: "LatentAttentionConfig", *, position: Position
    ) -> None:
        super().__init__()
        s, n = settings, settings.n_heads
        self.d_content, self.d_position, self.d_value = s.d_content, s.d_position, s.d_value
        self.rank = s.rank
        self.q_down_proj, self.q_norm, d_query = None, None, d_model
        if s.query_rank is not None:
            self.q_down_proj = Linear(d_model, s.query_rank, bias=s.bias)
            self.q_norm, d_query = build_norm(s.norm, s.query_rank), s.query_rank
        self.q_up_proj = Linear(d_query, n * s.width(d_model), bias=False)
        self.kv_down_proj = Linear(d_model, s.rank + s.d_position, bias=s.bias)
        self.kv_norm = build_norm(s.norm, s.rank)
        self.k_up_proj = Linear(s.rank, n * s.d_content, bias=False)
        self.v_up_proj = Linear(s.rank, n * s.d_value, bias=False)
        self.out_proj = Linear(n * s.d_value, d_model, bias=s.bias)
        self.scale = s.score.scale(s.width(d_model))
        score = DotProduct(self.scale, softcap=s.score.softcap)
        self.core = (SDPACore if is_fused(s.score) else EagerCore)(score, dropout=s.dropout)
        self.position = position
        self.pattern: Mask = build_pattern(s.pattern)

    @property
    def n_heads(self) -> int:
        """The number of heads."""
        return self.out_proj.in_features // self.d_value

    def forward(self, x: Hidden, ctx: Context, cache: AttentionCache | None = None) -> Hidden:
        (q, q_r), (c, k_r) = self.queries(x), self.latents(x)
        q_r, k_r = self.position.rotate(q_r, k_r, ctx)
        c, k_r = (c, k_r) if cache is None else cache.append(c, k_r, ctx.within)
        q_r, k_r = self.position.rotate_all(q_r, k_r, ctx)
        attend = self.expanded if cache is None or not self.is_few(x.shape[1]) else self.absorbed
        heads = attend(q, q_r, c, k_r, ctx)
        return self.out_proj(heads.transpose(1, 2).flatten(-2))

    def queries(self, x: Hidden) -> tuple[ContentQueries, PositionQueries]:
        """The two parts of the queries of each head, `c_q W_uq` and `c_q W_qr`."""
        if self.q_down_proj is not None and self.q_norm is not None:
            x = self.q_norm(self.q_down_proj(x))
        q = _split(self.q_up_proj(x), self.d_content + self.d_position)
        return q[..., : self.d_content], q[..., self.d_content :]

    def latents(self, x: Hidden) -> tuple[Latents, SharedKeys]:
        """The latent of each token and its key before rotation, as the cache stores them."""
        c, k_r = self.kv_down_proj(x)[:, None].tensor_split((self.rank,), dim=-1)
        return self.kv_norm(c), k_r

    def is_few(self, n: int) -> bool:
        """Whether `n` queries read the cached latents with fewer products than it takes to expand
        them.
        """
        maps = (self.k_up_proj, self.v_up_proj)
        if any(type(layer) is not Linear for layer in maps):  # adapted or quantised
            return False
        inner = self.d_content + self.d_value
        return n * (2 * self.rank - inner) < self.rank * inner

    def expanded(
        self, q: ContentQueries, q_r: PositionQueries, c: Latents, k_r: SharedKeys, ctx: Context
    ) -> ValueHeads:
        """Attend to keys `[c W_uk; k_r]` and values `c W_uv` of each head.

        They are padded with zeros to one width: fused kernels have no other, and torch's own way
        takes memory quadratic in the text.
        """
        k = _split(self.k_up_proj(c[:, 0]), self.d_content)
        k = torch.cat([k, k_r.expand(-1, k.shape[1], -1, -1)], dim=-1)
        v = _split(self.v_up_proj(c[:, 0]), self.d_value)
        bias = self.position.score_bias(q_r, ctx)
        q, n = torch.cat([q, q_r], dim=-1), max(k.shape[-1], self.d_value)
        q, k, v = (y if y.shape[-1] == n else F.pad(y, (0, n - y.shape[-1])) for y in (q, k, v))
        return self.core(q, k, v, ctx.mask, bias)[..., : self.d_value]

    def absorbed(
        self, q: ContentQueries, q_r: PositionQueries, c: Latents, k_r: SharedKeys, ctx: Context
    ) -> ValueHeads:
        """Attend to the latents themselves: `q (c W_uk)ᵀ = (q W_ukᵀ) cᵀ` and `A (c W_uv) = (A c)
        W_uv`.

        The scores by position are a bias of those by content, so that nothing of the cache is
        copied; a cap covers their sum, for which queries and keys are joined.
        """
        k_up = self.k_up_proj.weight.unflatten(0, (-1, self.d_content))
        v_up = self.v_up_proj.weight.unflatten(0, (-1, self.d_value))
        q, k, bias = q @ k_up.to(q.dtype), c, self.position.score_bias(q_r, ctx)
        if isinstance(self.core, SDPACore):
            bias = self._position_scores(q_r, k_r, bias)
        else:
            q, k = torch.cat([q, q_r], dim=-1), torch.cat([c, k_r], dim=-1)
        return self.core(q, k, c, ctx.mask, bias) @ v_up.mT.to(c.dtype)

    def _position_scores(self, q_r: PositionQueries, k_r: SharedKeys, more: Bias | None) -> Bias:
        """The bias `q_r k_rᵀ · scale + more`, computed by tiles."""
        q_r = q_r * self.scale

        def tile(rows: slice, keys: slice) -> Float[Tensor, "batch heads q_seq kv_seq"]:
            scores = grouped_product(q_r[:, :, rows], k_r[:, :, keys].mT)
            return scores if more is None else scores + more(rows, keys).to(scores.dtype)

        return tile

    def new_cache(self) -> SelfCache:
        """An empty cache for the latents and the shared keys, in place of keys and values."""
        return SelfCache()


def _split(x: Float[Tensor, "batch seq width"], d_head: int) -> Heads:
    """Split the last axis into heads."""
    return x.unflatten(-1, (-1, d_head)).transpose(1, 2)


@config
class LatentAttentionConfig:
    """Attention whose keys and values are maps of a latent (DeepSeek-AI 2024a, §2.1)."""

    kind: Literal["latent"] = "latent"
    n_heads: PositiveInt = 8
    """Heads of queries, keys and values."""
    rank: PositiveInt = 64
    """The width of the latent that keys and values are maps of, and that the cache holds."""
    query_rank: PositiveInt | None = None
    """The width of the latent that queries are maps of; by default they are maps of the input."""
    d_content: PositiveInt = 32
    """The width of each head's queries and keys that positions leave alone."""
    d_position: PositiveInt = 16
    """The width of each head's queries, and of the key of all heads, on which positions act."""
    d_value: PositiveInt = 32
    """The width of each head's values."""
    bias: bool = False
    """Whether the maps into latents and the output projection have a bias."""
    norm: NormConfig = RMSNormConfig()
    """The norm of the latents."""
    dropout: Probability = 0.0
    """The dropout rate of the attention weights."""
    score: Annotated[ScaledDotConfig, WORD] = ScaledDotConfig()
    """The scale of the scores, by default 1/√(d_content + d_position), and their cap."""
    pattern: PatternConfig = FullPatternConfig()
    """The mask of self-attention, within the causal mask where there is one."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Queries of the input itself, and of a latent of their own with biases."""
        small = cls(n_heads=3, rank=6, d_content=4, d_position=2, d_value=5)
        queries = cls(
            n_heads=2, rank=5, query_rank=3, d_content=3, d_position=4, d_value=2, bias=True
        )
        return {"latent": small, "latent_queries": queries}

    def width(self, d_model: int) -> int:
        """The width of a head's queries and keys."""
        return self.d_content + self.d_position

    def heads(self, d_model: int) -> HeadShape:
        """The heads on which positions act."""
        return HeadShape(self.n_heads, self.n_heads, self.d_position)

    def build(
        self, d_model: int, position: Position, causal: bool, layer: int = 0
    ) -> LatentAttention:
        if type(position).content_bias is not Position.content_bias:
            raise InputError(
                f"{type(position).__name__} positions read the projections of queries and keys, "
                "and latent attention has no single ones: give it other positions"
            )
        return LatentAttention(d_model, self, position=position)
