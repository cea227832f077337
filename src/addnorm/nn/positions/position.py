"""Position: the interface of position encodings, a set of hooks that do nothing by default."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.built import built, check_shape
from addnorm.nn.context import Context
from addnorm.nn.masks import Full
from addnorm.nn.splits import Splits
from addnorm.nn.types import Heads, Hidden, Keys, Queries
from addnorm.parts import is_ours

Bias = Callable[[slice, slice], Float[Tensor, "#batch heads q_seq kv_seq"]]
"""A bias added to the scaled scores before the softmax, evaluated tile by tile.

The slices select queries and keys of the forward pass; `tile(slice(None), slice(None))` is the
whole bias. A tile may have a wider dtype than the queries.
"""


@dataclass(frozen=True)
class PairBias:
    """A `Bias` that is a function of one pair: `at(row, head, query, key)`, which broadcasts.

    Like FlexAttention's `score_mod`, so that a kernel can compute it on the fly (see `flex`).
    """

    tile: Bias
    at: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

    def __call__(self, rows: slice, keys: slice) -> Float[Tensor, "#batch heads q_seq kv_seq"]:
        return self.tile(rows, keys)


def offset_of(ctx: Context) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The function `offset(row, query, key)`: the key's position minus the query's position."""
    here, there = ctx.positions, ctx.kv_positions

    def offset(row: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row = row if here.shape[0] > 1 else row * 0  # one row shared by all
        return there[row, j] - here[row, i]

    return offset


def distance_bias(ctx: Context, bias: Callable[[Any, Tensor], Tensor]) -> PairBias:
    """The bias `bias(head, |i - j|)` for query position `i` and key position `j`.

    `head` is an index of a tensor with a number for each head: of one head, or of all of them.
    """
    offset = offset_of(ctx)

    def tile(rows: slice, keys: slice) -> Float[Tensor, "#batch heads q_seq kv_seq"]:
        offsets = ctx.positions[:, None, rows, None] - ctx.kv_positions[:, None, None, keys]
        return bias((slice(None), None, None), offsets.abs())

    def at(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return bias(head, offset(row, i, j).abs())

    return PairBias(tile, at)


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """The model sizes for a part being built, and the factor by which scores multiply `q·k`."""

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
    """Whether scores are plain products `q·k`, which rotary positions require."""
    projections: bool = True
    """Whether positions may be projected as hidden states are (`Projections`)."""
    pictures: bool = False
    """Whether the tokens are patches of pictures, whose rows and columns the context has."""


@runtime_checkable
class Projections(Protocol):
    """The query and key projections of the attention in which a position encoding acts."""

    def queries(self, x: Hidden) -> Heads:
        """The queries of every head."""
        ...

    def keys(self, y: Hidden) -> Heads:
        """The keys of every key/value head."""
        ...

    def for_query_heads(self, k: Keys, n_heads: int) -> Heads:
        """The keys that each of `n_heads` query heads is compared with."""
        ...


class Position(nn.Module):
    """Base class of position encodings; a subclass overrides the hooks it needs.

    Tensors that are plain attributes are constants: they follow the module to its device, and keep
    their own type where a buffer would be cast with the model.
    """

    def _apply(self, fn: Callable[..., Tensor], recurse: bool = True) -> "Position":
        super()._apply(fn, recurse)
        for name, constant in vars(self).items():
            if isinstance(constant, Tensor):
                setattr(self, name, on_device_of(fn, constant))
        return self

    def embed(self, x: Hidden, ctx: Context) -> Hidden:
        """Modify the embeddings, before the first layer."""
        return x

    def rotate(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        """Modify queries and keys before the keys enter the cache.

        `q` and `k` belong to the last `q.shape[2]` and `k.shape[2]` of `ctx.kv_positions`.
        """
        return q, k

    def rotate_all(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        """Modify the queries and all keys, including the cached ones."""
        return q, k

    def score_bias(self, q: Queries, ctx: Context) -> Bias | None:
        """The bias added to the scores of the rotated `q` against all keys; None for no bias."""
        return None

    def content_bias(
        self, q: Queries, k: Keys, ctx: Context, projections: Projections
    ) -> Bias | None:
        """The bias of a scheme that also reads the keys `k`; by default `score_bias(q, ctx)`."""
        return self.score_bias(q, ctx)

    def in_layer(self, layer: int) -> "Position":
        """The position module of this layer's attention: itself, unless the scheme is per layer."""
        return self

    @property
    def max_len(self) -> int | None:
        """The maximum number of positions; None if unbounded."""
        return None


def on_device_of(fn: Callable[..., Tensor], constant: Tensor) -> Tensor:
    """`constant` on the device to which `fn` moves tensors, unless that cannot hold it."""
    device = fn(torch.empty(0, dtype=torch.long, device=constant.device)).device
    lacks_it = device.type == "meta" or (device.type == "mps" and constant.dtype == torch.float64)
    return constant if lacks_it else constant.to(device)


def placed(constant: Tensor) -> Tensor:
    """`constant` on the device on which modules are built, as under `with torch.device("cuda")`."""
    return on_device_of(lambda x: x.to(torch.get_default_device()), constant)


def acts_in_attention(position: Position) -> bool:
    """Whether an encoding acts on queries, keys or scores, so that it depends on their heads."""
    kind = type(position)
    return not (
        kind.rotate is Position.rotate
        and kind.rotate_all is Position.rotate_all
        and kind.score_bias is Position.score_bias
        and kind.content_bias is Position.content_bias
        and kind.in_layer is Position.in_layer
    )


@runtime_checkable
class PositionPart(Protocol):
    """A configuration of a position encoding; builds a `Position` for the given model sizes.

    All layers of a stack share one module; `Position.in_layer` can give each layer its own.
    """

    def build(self, build_context: BuildContext) -> Position: ...


def not_a_dot_product(kind: str, around: BuildContext) -> str | None:
    """Why a position encoding for dot products conflicts with this score; None if it does not."""
    if not around.plain_products:
        return (
            f"{kind} positions are defined for dot products: with {around.score} scores use "
            "'sinusoidal', 'learned', 'alibi', 'kerple', 't5' or 'none'"
        )
    return None


def build_position(config: PositionPart, sizes: BuildContext) -> Position:
    """The scheme. Raises `InputError` if a custom part builds none."""
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


class NoPosition(Position):
    """`x + 0`: acts nowhere (Kazemnejad et al. 2023); self-attention is permutation equivariant."""

    splits: ClassVar[Splits] = {}


@config
class NoPositionConfig:
    """No positions at all."""

    kind: Literal["none"] = "none"

    def build(self, build_context: BuildContext) -> NoPosition:
        return NoPosition()
