"""Transformer-XL relative positions: content and position scores, each with its own bias."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.functional import wide_dtype
from addnorm.nn.positions.position import Bias, BuildContext, Position, not_a_dot_product
from addnorm.nn.positions.rotary import turn_interleaved
from addnorm.nn.positions.sinusoidal import frequencies, in_float64, sinusoidal_encoding, waves
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import Keys, Queries


class TransformerXL(Position):
    """`((q + u)·k + (q + v)·W_R R_{i-j}) · scale` in every layer (Dai et al. 2019, §3.3).

    Acts in the layers alone: each has its own `RelativeScores`.
    """

    def __init__(self, build_context: BuildContext) -> None:
        super().__init__()
        self.build_context = build_context

    def in_layer(self, layer: int) -> Position:
        build_context = self.build_context
        return RelativeScores(
            build_context.d_model,
            build_context.n_heads,
            build_context.d_head,
            scale=build_context.scale,
        )


class RelativeScores(Position):
    """`((q + u)·k + (q + v)·W_R R_{i-j}) · scale` in one layer (Dai et al. 2019, §3.3).

    `R` is the sinusoidal encoding of the distance, `u` and `v` are one vector for each head, and
    `W_R` maps `d_model` to heads. Since `R_{i-j}` is `R_{-j}` with each of its pairs rotated by `-i
    ω`, the second term is `turn_i(W_Rᵀ (q + v)) · R_{-j}`: a plain matrix product for any
    positions, with no intermediate result per pair of tokens. Raises `ValueError` for an odd
    `d_model`, whose last sine has no cosine.
    """

    splits: ClassVar[Splits] = {"u": Split(0), "v": Split(0), "r_proj": Split(0)}

    def __init__(self, d_model: int, n_heads: int, d_head: int, *, scale: float) -> None:
        super().__init__()
        if d_model % 2:
            raise ValueError(
                f"Transformer-XL needs sines and cosines in pairs: d_model = {d_model} must be "
                f"even; the nearest are {d_model - 1} and {d_model + 1}"
            )
        self.u = nn.Parameter(0.02 * torch.randn(n_heads, d_head))
        self.v = nn.Parameter(0.02 * torch.randn(n_heads, d_head))
        self.r_proj = nn.Linear(d_model, n_heads * d_head, bias=False)
        self.scale = scale

    def rotate(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        return q + self.u.to(q.dtype)[:, None], k

    def score_bias(self, q: Queries, ctx: Context) -> Bias:
        d_model = self.r_proj.in_features
        q = q + (self.v - self.u).to(q.dtype)[:, None]
        to_heads = self.r_proj.weight.to(q.dtype).unflatten(0, self.u.shape)

        def tile(rows: slice, keys: slice) -> Float[Tensor, "batch heads q_seq kv_seq"]:
            wide = wide_dtype(q.dtype)
            positions = ctx.positions[:, rows]
            omega = frequencies(d_model, device=in_float64(positions).device)
            cos, sin = waves(positions, omega, wide)
            turned = turn_interleaved(q[:, :, rows] @ to_heads, cos[:, None], sin[:, None])
            r = sinusoidal_encoding(-ctx.kv_positions[:, keys], d_model, dtype=q.dtype)
            return turned @ r[:, None].mT * self.scale

        return tile


@config
class TransformerXLConfig:
    """Relative positions in every layer; nothing to choose."""

    kind: Literal["transformer_xl"] = "transformer_xl"

    def conflict(self, around: BuildContext) -> str | None:
        """`d_model` must be even, and the score a dot product."""
        if around.d_model % 2:
            return (
                f"transformer_xl positions encode distances in pairs: d_model = {around.d_model} "
                f"must be even, such as {around.d_model + 1}"
            )
        return not_a_dot_product("transformer_xl", around)

    def build(self, build_context: BuildContext) -> TransformerXL:
        return TransformerXL(build_context)
