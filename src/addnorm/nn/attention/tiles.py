"""Tiled attention: a few queries at a time, against only the keys within their reach.

A dense mask or bias has as many entries as there are pairs of queries and keys. In tiles it is
never materialised as a whole: memory is linear in the length, and a window of `w` costs O(w ·
length). Under autograd a tile is recomputed in the backward pass (checkpointing: Chen et al. 2016).
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from addnorm.nn.masks import DENSE_LIMIT, TILE, Causal, Dense, Evaluated, Full, Tiled
from addnorm.nn.positions.position import Bias
from addnorm.nn.types import Keys, Mixed, Queries, Values

Attend = Callable[[Tensor, Tensor, Tensor, Evaluated, Tensor | None], Tensor]


def is_tiled(q: Queries, k: Keys, mask: Evaluated, bias: Bias | None, width: int = 1) -> bool:
    """Whether to tile: for a tiled mask, or for large scores (`width` numbers a pair) or bias."""
    pairs = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    large = width > 1 or bias is not None
    return isinstance(mask, Tiled) or (large and bool(pairs * width > DENSE_LIMIT))


def in_tiles(
    attend: Attend,
    q: Queries,
    k: Keys,
    v: Values,
    mask: Evaluated,
    bias: Bias | None,
    width: int = 1,
) -> Mixed:
    """Apply `attend` to each tile and concatenate the results along the queries."""

    def tile(rows: slice, keys: slice) -> Tensor:
        def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            part = None if bias is None else bias(rows, keys)
            return attend(q, k, v, _tile(mask, rows, keys, q, k), part)

        parts = q[:, :, rows], k[:, :, keys], v[:, :, keys]
        if torch.is_grad_enabled():
            return checkpoint(run, *parts, use_reentrant=False)
        return run(*parts)

    return torch.cat([tile(*place) for place in _places(q, k, mask, width)], dim=2)


def _places(q: Queries, k: Keys, mask: Evaluated, width: int) -> Iterator[tuple[slice, slice]]:
    """Yield the queries of each tile and the keys that any of them can reach."""
    batch, heads, n_q, _ = q.shape
    n_kv = k.shape[2]
    back, ahead = mask.reach
    span = int(min(n_kv, back + ahead + 1))
    affordable = DENSE_LIMIT // (4 * max(batch * heads * span * width, 1))
    size = max(1, min(affordable, max(TILE, span)))
    for first in range(0, n_q, size):
        last = min(first + size, n_q)
        offset = n_kv - n_q  # query i is at key slot i + offset
        begin = int(max(0, first + offset - back))
        end = int(min(n_kv, last + offset + ahead))
        yield slice(first, last), slice(begin, end)


def _tile(mask: Evaluated, rows: slice, keys: slice, q: Tensor, k: Tensor) -> Full | Dense:
    match mask:
        case Full():
            return mask
        case Causal():
            i = torch.arange(rows.start, rows.stop, device=q.device)
            j = torch.arange(keys.start, keys.stop, device=q.device)
            return Dense((j <= i[:, None])[None, None])
        case Dense(allowed):
            return Dense(allowed[:, :, rows, keys])
        case Tiled():
            return mask.tile(rows, keys)
