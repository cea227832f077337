"""Position: the places where a scheme may act, each doing nothing unless a scheme says so."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.nn.built import built, check_shape
from addnorm.nn.context import Context
from addnorm.nn.masks import Full
from addnorm.nn.types import Hidden, Keys, Queries
from addnorm.parts import is_ours

Bias = Callable[[slice, slice], Float[Tensor, "#batch heads q_seq kv_seq"]]
"""What is added to the scaled scores before the softmax, evaluated tile by tile.

The slices pick the rows and the keys among those of the pass, so `tile(slice(None), slice(None))`
is the whole. A tile may be in a wider type than the queries.
"""


@dataclass(frozen=True)
class PairBias:
    """A `Bias` that each pair gives for itself: `at(row, head, query, key)`, which broadcast.

    The form of FlexAttention's `score_mod`, so a kernel can compute it inside (see `flex`).
    """

    tile: Bias
    at: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def __call__(self, rows: slice, keys: slice) -> Float[Tensor, "#batch heads q_seq kv_seq"]:
        return self.tile(rows, keys)


def offset_of(ctx: Context) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """`offset(row, query, key)`: how far a key stands ahead of a query."""
    here, there = ctx.positions, ctx.kv_positions

    def offset(row: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = row if here.shape[0] > 1 else row * 0  # one row of positions serves all
        return there[row, j] - here[row, i]

    return offset


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """The sizes around a part that is being built, and the factor that scores multiply `q·k` by."""

    d_model: int
    max_len: int
    n_heads: int
    d_head: int
    causal: bool
    scale: float
    n_kv_heads: int | None = None
    n_layers: int = 1
    score: str = "scaled_dot"
    """The kind of the score."""
    plain_products: bool = True
    """Whether scores are products of queries and keys as they are, which rotations need."""


class Position(nn.Module):
    """A scheme overrides the hooks that it acts on; the others stay as they are here."""

    def embed(self, x: Hidden, ctx: Context) -> Hidden:
        """Act on the embeddings, before the first layer."""
        return x

    def rotate(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        """Act on queries and keys before the keys enter a cache.

        `q` and `k` are those of the last `q.shape[2]` and `k.shape[2]` of `ctx.kv_positions`.
        """
        return q, k

    def rotate_all(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        """Act on the queries and on all keys, the cached ones included."""
        return q, k

    def score_bias(self, q: Queries, ctx: Context) -> Bias | None:
        """What is added to the scores of `q`, as `rotate` left it, against all keys; or None."""
        return None

    def in_layer(self, layer: int) -> "Position":
        """The scheme as the attention of this layer holds it: itself, if it acts there at all."""
        return self

    @property
    def max_len(self) -> int | None:
        """How many positions the scheme knows; None where there is no bound."""
        return None


@runtime_checkable
class PositionPart(Protocol):
    """A configuration of a position scheme: it builds a `Position` for the sizes around it.

    One scheme serves all layers of a stack; `Position.in_layer` gives a layer one of its own.
    """

    def build(self, build_context: BuildContext) -> Position: ...


def not_a_dot_product(kind: str, around: BuildContext) -> str | None:
    """Why positions that act inside of dot products cannot work with another score."""
    if not around.plain_products:
        return (
            f"{kind} positions are defined for dot products: with {around.score} scores use "
            "'sinusoidal', 'learned', 'alibi', 'kerple', 't5' or 'none'"
        )
    return None


def build_position(config: PositionPart, sizes: BuildContext) -> Position:
    """The scheme. Raises `InputError` where someone's own builds none."""
    expected = "positions must be a Position of addnorm.nn.positions"
    position = built(config, config.build(sizes), Position, expected)
    if is_ours(type(config)):
        return position
    x = torch.zeros(2, 3, sizes.d_model)
    q = torch.zeros(2, sizes.n_heads, 3, sizes.d_head)
    k = torch.zeros(2, sizes.n_kv_heads or sizes.n_heads, 3, sizes.d_head)
    ctx = Context.over(x, Full())
    layer = built(config, position.in_layer(0), Position, f"{expected}, in_layer(0) too")
    check_shape(config, "embed(x, ctx)", lambda: position.embed(x, ctx), x.shape)
    for i, of in enumerate((q, k)):
        check_shape(config, "rotate(q, k, ctx)", lambda i=i: layer.rotate(q, k, ctx)[i], of.shape)
    return position
