"""T5's relative position bias: one learned scalar per head for every range of distances."""

import math
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import PositiveInt
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.positions.position import BuildContext, PairBias, Position, offset_of
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import Queries


def bucket(
    offset: Int[Tensor, "*shape"], *, buckets: int, max_distance: int, causal: bool
) -> Int[Tensor, "*shape"]:
    """The bucket of the offset `key - query` (Raffel et al. 2020, §2.1).

    Half of the buckets hold one distance each, the others ranges that grow logarithmically up to
    `max_distance`; all larger distances share the last bucket. Unless `causal`, later keys use the
    second half of the buckets; if `causal`, later keys count as distance 0.
    """
    n = buckets if causal else buckets // 2
    distance = (-offset).clamp(min=0) if causal else offset.abs()
    exact = n // 2
    share = (distance.clamp(min=exact) / exact).log() / math.log(max_distance / exact)
    ranged = (exact + (share * (n - exact)).long()).clamp(max=n - 1)
    side = 0 if causal else n * (offset > 0)
    return torch.where(distance < exact, distance, ranged) + side


class T5Bias(Position):
    """Adds `table[bucket(j - i)]` to the score of position `i` against `j` (Raffel et al. 2020).

    One table of a number for each bucket and head, shared by all layers (§2.1).
    """

    splits: ClassVar[Splits] = {"table": Split(1)}

    def __init__(
        self, n_heads: int, *, buckets: int = 32, max_distance: int = 128, causal: bool
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(buckets, n_heads)
        self.max_distance = max_distance
        self.causal = causal

    def score_bias(self, q: Queries, ctx: Context) -> PairBias:
        ranges = partial(
            bucket,
            buckets=self.table.num_embeddings,
            max_distance=self.max_distance,
            causal=self.causal,
        )
        table, offset = self.table.weight, offset_of(ctx)

        def tile(rows: slice, keys: slice) -> Float[Tensor, "#batch heads q_seq kv_seq"]:
            offsets = ctx.kv_positions[:, None, keys] - ctx.positions[:, rows, None]
            return self.table(ranges(offsets)).movedim(-1, 1)

        def at(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            return table[ranges(offset(row, i, j)), head]

        return PairBias(tile, at)


@config
class T5BiasConfig:
    """`buckets` ranges of distance; the last one begins before `max_distance`."""

    kind: Literal["t5"] = "t5"
    buckets: PositiveInt = 32
    """Ranges of distance that share a learned bias."""
    max_distance: PositiveInt = 128
    """Tokens from which on all distances share the last bucket."""

    def __post_init__(self) -> None:
        if self.buckets < 4 or self.buckets % 2:
            nearest = max(4, self.buckets - self.buckets % 2)
            raise ValueError(
                f"buckets = {self.buckets} must be even and at least 4: the nearest is {nearest}"
            )
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"max_distance = {self.max_distance} must be more than half of "
                f"buckets = {self.buckets}: at least {self.buckets // 2 + 1}"
            )

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Few buckets, so that short texts have ranges of several distances; and the default."""
        return {
            "t5": cls(buckets=6, max_distance=5),
            "t5_default_buckets": cls(),
        }

    def build(self, build_context: BuildContext) -> T5Bias:
        return T5Bias(
            build_context.n_heads,
            buckets=self.buckets,
            max_distance=self.max_distance,
            causal=build_context.causal,
        )
