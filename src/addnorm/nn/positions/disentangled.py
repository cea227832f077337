"""Disentangled attention of DeBERTa: scores of contents against relative positions, both ways."""

from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import PositiveInt
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.linear import Linear
from addnorm.nn.norms import BatchNormConfig, LayerNormConfig, NoNorm, NormConfig, build_norm
from addnorm.nn.positions.position import (
    Bias,
    BuildContext,
    Position,
    Projections,
    not_a_dot_product,
)
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import Heads, Hidden, Keys, Queries

Terms = Literal["both", "content_to_position", "position_to_content"]
"""The products with positions: of queries, `q·P_k`, and of keys, `k·P_q`."""


def log_bucket(
    offset: Int[Tensor, "*shape"], buckets: int, max_distance: int
) -> Int[Tensor, "*shape"]:
    """The offset itself up to `m = buckets / 2`; beyond it, a bucket that grows logarithmically.

    `±(m + ⌈(m - 1) ln(|d| / m) / ln((max_distance - 1) / m)⌉)` for `|d| > m` (He et al. 2023, and
    their code).
    """
    middle = buckets // 2
    distance = offset.abs()
    # The same rounding above and below gives exactly one at the distance max_distance - 1.
    most = torch.full((), (max_distance - 1) / middle, device=offset.device).log()
    share = (distance.clamp(min=middle) / middle).log() / most
    far = (middle + (share * (middle - 1)).ceil().long()) * offset.sign()
    return torch.where(distance <= middle, offset, far)


class RelativeTable(nn.Module):
    """A normalised vector for each relative position, `-span` to `span - 1`; layers share them.

    With `buckets`, positions are those of `log_bucket`, and `span = buckets`; otherwise they are
    plain offsets, and `span = max_distance`. Others take the first or the last vector.
    """

    splits: ClassVar[Splits] = {}

    def __init__(
        self, d_model: int, *, buckets: int | None, max_distance: int, norm: NormConfig | None
    ) -> None:
        super().__init__()
        self.span = buckets or max_distance
        self.buckets = buckets
        self.max_distance = max_distance
        self.table = nn.Embedding(2 * self.span, d_model)
        self.norm = NoNorm() if norm is None else build_norm(norm, d_model)

    def forward(self) -> Float[Tensor, "1 rows d_model"]:
        return self.norm(self.table.weight[None], None)

    def row(self, offset: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
        """The row of the offset `i - j`."""
        if self.buckets is not None:
            offset = log_bucket(offset, self.buckets, self.max_distance)
        return (offset + self.span).clamp(0, 2 * self.span - 1)


class DisentangledScores(Position):
    """`(q·k + q·P_k[δ(i, j)] + k·P_q[δ(i, j)]) · scale / √n` in one layer, `n` terms of products.

    He et al. 2021, §3.1, eq. 4; `P_q` and `P_k` are the relative positions through projections:
    those of the layer's queries and keys, or its own. Their eq. 4 has `P_q[δ(j, i)]`; this follows
    their code, which both terms read at `δ(i, j)`. The positions have no dropout.
    """

    splits: ClassVar[Splits] = {
        "q_proj": Split(0, "head_units"),
        "k_proj": Split(0, "kv_head_units", copied=True),
    }

    def __init__(
        self,
        relative: RelativeTable,
        *,
        terms: Terms,
        d_head: int,
        scale: float,
        q_proj: Linear | None = None,
        k_proj: Linear | None = None,
    ) -> None:
        super().__init__()
        self.relative = relative
        self.terms = terms
        self.d_head = d_head
        self.scale = scale
        self.q_proj = q_proj
        self.k_proj = k_proj

    @property
    def head_units(self) -> int:
        """The heads of the queries."""
        return 1 if self.q_proj is None else self.q_proj.out_features // self.d_head

    @property
    def kv_head_units(self) -> int:
        """The heads of the keys."""
        return 1 if self.k_proj is None else self.k_proj.out_features // self.d_head

    @property
    def _shrink(self) -> float:
        return (3 if self.terms == "both" else 2) ** -0.5

    def rotate(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        return q * self._shrink, k

    def content_bias(
        self, q: Queries, k: Keys, ctx: Context, projections: Projections
    ) -> Bias | None:
        positions, n_heads = self.relative(), q.shape[1]
        of_keys = of_queries = None
        if self.terms != "position_to_content":
            of_keys = self._project(self.k_proj, projections.keys, positions)
            of_keys = projections.for_query_heads(of_keys, n_heads)
        if self.terms != "content_to_position":
            of_queries = self._project(self.q_proj, projections.queries, positions)
            of_queries = of_queries * self._shrink
            k = projections.for_query_heads(k, n_heads)

        def tile(rows: slice, keys: slice) -> Float[Tensor, "batch heads q_seq kv_seq"]:
            offsets = ctx.positions[:, None, rows, None] - ctx.kv_positions[:, None, None, keys]
            row = self.relative.row(offsets).expand(q.shape[0], n_heads, -1, -1)
            scores = torch.zeros((), dtype=q.dtype, device=q.device)
            if of_keys is not None:
                scores = scores + (q[:, :, rows] @ of_keys.mT).gather(-1, row)
            if of_queries is not None:
                scores = scores + (k[:, :, keys] @ of_queries.mT).gather(-1, row.mT).mT
            return scores * self.scale

        return tile

    def _project(self, own: Linear | None, shared: Any, positions: Hidden) -> Heads:
        if own is None:
            return shared(positions)
        return own(positions).unflatten(-1, (-1, self.d_head)).transpose(1, 2)


class Disentangled(Position):
    """`(q·k + q·P_k + k·P_q) · scale / √n`, with one table of `P` for all layers.

    He et al. 2021, §3.1, eq. 4; each layer projects the `RelativeTable` (`DisentangledScores`).
    """

    def __init__(self, config: "DisentangledConfig", build_context: BuildContext) -> None:
        super().__init__()
        self.relative = RelativeTable(
            build_context.d_model,
            buckets=config.buckets,
            max_distance=config.max_distance,
            norm=config.norm,
        )
        self.config = config
        self.build_context = build_context

    def in_layer(self, layer: int) -> Position:
        sizes, terms = self.build_context, self.config.terms

        def own(n_heads: int, *, used: bool) -> Linear | None:
            if not used or self.config.projections == "shared":
                return None
            return Linear(sizes.d_model, n_heads * sizes.d_head)

        return DisentangledScores(
            self.relative,
            terms=terms,
            d_head=sizes.d_head,
            scale=sizes.scale,
            q_proj=own(sizes.n_heads, used=terms != "content_to_position"),
            k_proj=own(sizes.n_kv_heads or sizes.n_heads, used=terms != "position_to_content"),
        )


@config
class DisentangledConfig:
    """Contents against relative positions in every layer, as in DeBERTa v2 and v3."""

    kind: Literal["disentangled"] = "disentangled"
    max_distance: PositiveInt = 512
    """The distance from which on all share the last relative position."""
    buckets: PositiveInt | None = 256
    """Logarithmic ranges of distance on either side; null for a vector for every distance."""
    terms: Terms = "both"
    """Whether positions meet the queries (content_to_position), the keys, or both."""
    projections: Literal["shared", "own"] = "shared"
    """Whether each layer maps positions by the matrices of its queries and keys, or by others."""
    norm: NormConfig | None = None
    """A norm of the relative positions; by default none."""

    def __post_init__(self) -> None:
        if isinstance(self.norm, BatchNormConfig):
            raise ValueError("norm normalises the relative positions: batchnorm cannot")
        if self.buckets is None:
            return
        if self.buckets < 4:
            raise ValueError(f"buckets = {self.buckets} must be at least 4")
        if self.max_distance <= self.buckets // 2 + 1:
            raise ValueError(
                f"max_distance = {self.max_distance} must be more than half of "
                f"buckets = {self.buckets}: at least {self.buckets // 2 + 2}"
            )

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Few ranges, so that short texts have several; and each option."""
        return {
            "disentangled": cls(buckets=4, max_distance=7),
            "disentangled_own": cls(
                buckets=None, max_distance=3, projections="own", norm=LayerNormConfig()
            ),
            "disentangled_queries": cls(buckets=5, max_distance=9, terms="content_to_position"),
            "disentangled_keys": cls(buckets=None, max_distance=4, terms="position_to_content"),
        }

    def conflict(self, around: BuildContext) -> str | None:
        """The score must be a dot product of projected hidden states."""
        if not around.projections:
            return (
                "disentangled positions go through the projections of queries and keys, which "
                "latent attention has no single one of: use 'rotary', 'alibi', 'kerple' or 't5'"
            )
        return not_a_dot_product("disentangled", around)

    def build(self, build_context: BuildContext) -> Disentangled:
        return Disentangled(self, build_context)
