"""Exact steps: a token gets the same bits whatever is computed together with it.

A product may add in another order where it has another number of rows. So an exact step computes
its tokens in tiles of a few numbers of rows, which were seen to agree, to the last bit, on this
machine; tiles that are not full are padded. A token of a prompt is a row too, as in decoding.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.generate.graphs import has_other_parts
from addnorm.models import DecoderModel
from addnorm.nn.attention import SelfAttention
from addnorm.nn.moe import MixtureOfExperts
from addnorm.nn.positions.alibi import ALiBi
from addnorm.nn.positions.position import Position
from addnorm.serve.engine.paged_step import PagedStep

SIZES = (16, 32, 64)
"""The numbers of rows that a tile may have."""

COMPARED = 32
"""The tokens of the text by which tiles are compared."""

Read = Callable[[list[int], int], Float[Tensor, "tokens vocab"]]
"""The logits after some tokens of a text, which are computed in one tile of this many rows."""


@dataclass(frozen=True)
class Tiles:
    """The tile sizes that give a token the same bits, in ascending order."""

    sizes: tuple[int, ...]
    why_one: str | None = None
    """Why each token is computed by itself, if it is."""

    def split(self, n_tokens: int) -> Iterator[tuple[int, int]]:
        """Yield tiles for `n_tokens`: the number of tokens, and the size, at least half full."""
        while n_tokens > 0:
            least = -(-n_tokens // self.sizes[0]) * self.sizes[0]
            size = max(size for size in self.sizes if size <= least)
            yield min(size, n_tokens), size
            n_tokens -= size

    def __str__(self) -> str:
        if self.why_one is not None:
            return f"exact: one token after another: {self.why_one}"
        *others, last = map(str, self.sizes)
        sizes = f"{', '.join(others)} or {last}" if others else last
        return f"exact: tokens in tiles of {sizes}"


def one_by_one(why: str) -> Tiles:
    """Tiles of a single token, which are always exact."""
    return Tiles((1,), why)


def why_one_by_one(step: PagedStep, *, in_graph: bool) -> str | None:
    """Why a token depends on others in its tile, whatever the size; None if it does not.

    No rounding may depend on the longest text of the tile, as in attention to keys that are
    gathered, or in biases of all keys.
    """
    model: DecoderModel = step.model
    if has_other_parts(model):
        return "custom parts may look at all of a tile"
    if not in_graph and any(isinstance(part, MixtureOfExperts) for part in model.modules()):
        return "each expert computes all of its tokens together"
    for i, (mixer, score) in enumerate(zip(model.stack.mixers, step.scores, strict=True)):
        if score is None or not isinstance(mixer, SelfAttention):
            return f"attention of layer {i} does not read its keys in place"
        if type(mixer.position).score_bias not in (Position.score_bias, ALiBi.score_bias):
            return f"{type(mixer.position).__name__} positions are computed for a whole tile"
    return None


def agreeing(read: Read, n_tokens: int) -> Tiles:
    """The tile sizes that give each token of a text the same bits, at every place in a tile."""

    def logits(size: int, *, backwards: bool = False) -> Tensor:
        tiles = torch.arange(n_tokens).split(size)
        if not backwards:
            return torch.cat([read(tile.tolist(), size) for tile in tiles])
        return torch.cat([read(tile.flip(0).tolist(), size).flip(0) for tile in tiles])

    least, *others = SIZES
    expected = logits(least)
    if not torch.equal(expected, logits(least, backwards=True)):
        return one_by_one(f"here a row of {least} depends on its place")
    return Tiles((least, *(n for n in others if torch.equal(expected, logits(n, backwards=True)))))
