"""Attention by chunks of a text, each against only those keys that its tokens may attend to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from addnorm.nn.masks import TILE, Causal, Dense, Evaluated, Full, Tiled
from addnorm.nn.positions.position import Bias
from addnorm.nn.types import Keys, Mixed, Queries, Values

Core = Callable[[Queries, Keys, Values, Evaluated, Bias | None], Mixed]
"""What an attention core computes."""

FEWEST = 2**16
"""Pairs of queries and keys from which on keys are left out."""


def by_chunk(core: Core, chunks: Callable[[], Sequence[slice]]) -> Core:
    """Wrap a core so that each chunk skips the keys that none of its queries may attend to.

    Under a causal mask, a chunk may not attend to those after it, which are half of all.
    """

    def attend(q: Queries, k: Keys, v: Values, mask: Evaluated, bias: Bias | None = None) -> Mixed:
        if isinstance(mask, Full | Causal) or q.shape[2] * k.shape[2] < FEWEST:
            return core(q, k, v, mask, bias)
        parts = list[Tensor]()
        for rows in chunks():
            pairs = _pairs(mask, rows.start, rows.stop)
            keys, values = (x.index_select(2, pairs.keys) for x in (k, v))
            parts.append(core(q[:, :, rows], keys, values, pairs.mask, pairs.of(bias)))
        return torch.cat(parts, 2)

    return attend


@dataclass(frozen=True)
class Pairs:
    """Some queries, the keys that any of them may attend to, and the mask between both."""

    rows: slice
    keys: Int[Tensor, " reached"]
    mask: Evaluated

    def of(self, bias: Bias | None) -> Bias | None:
        """The bias between these queries and keys."""
        if bias is None:
            return None

        def tile(rows: slice, keys: slice) -> Tensor:
            chosen = range(self.rows.start, self.rows.stop)[rows]
            return bias(slice(chosen.start, chosen.stop), slice(None))[..., self.keys[keys]]

        return tile


@lru_cache(maxsize=4)  # all layers of a forward pass share a mask
def _pairs(mask: Dense | Tiled, first: int, last: int) -> Pairs:
    rows = slice(first, last)
    if isinstance(mask, Dense):
        allowed = mask.allowed[:, :, rows]
        keys = _reached(allowed)
        return Pairs(rows, keys, Dense(allowed[..., keys]))
    tiles = [slice(i, min(i + TILE, last)) for i in range(first, last, TILE)]
    allowed = [mask.tile(tile, slice(None)).allowed.any(2, keepdim=True) for tile in tiles]
    keys = _reached(torch.cat(allowed, 2))
    part = mask.mask.among(mask.q_slots[rows], mask.kv_slots[keys], mask.batch)
    return Pairs(rows, keys, part)


def _reached(allowed: Bool[Tensor, "#batch 1 q_seq kv_seq"]) -> Int[Tensor, " reached"]:
    """The keys that any query may attend to, but at least one, so that the core has an input."""
    any_query = allowed.flatten(0, 2).any(0)
    any_query[0] |= ~any_query.any()
    return any_query.nonzero().squeeze(1)
