"""Preallocated key/value buffers for compiled graphs, and beams that share them.

Tree attention for beam search: the beams of a sentence share one cache row and are never copied.
Selecting beams only updates the slots that each of them descends from (see `masks.Branches`). When
the buffers are full, the slots that no branch descends from are dropped. The functions of branches
return a new state that reuses the buffers of the old one.
"""

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from addnorm.models.step import TranslationState
from addnorm.nn.cache import (
    Cache,
    CrossCache,
    KVCache,
    NoCache,
    SelfCache,
    with_room,
)
from addnorm.nn.fixed_cache import FixedCache
from addnorm.nn.masks import Branches


def in_buffers(cache: KVCache, dtype: torch.dtype | None = None) -> KVCache:
    """Copy a cache (attention layers only) into preallocated buffers, of this type if given."""
    n = int(cache.length)
    slots = torch.arange(n)
    layers = [_in_buffers(layer.self_cache, slots, dtype) for layer in cache]
    fixed = KVCache(layers, length=n)
    for new, old in zip(fixed, cache, strict=True):
        if memory := old.cross_cache.kept:
            new.cross_cache = CrossCache((memory[0].contiguous(), memory[1].contiguous()))
    return fixed


def _in_buffers(
    cache: Cache, slots: Int[Tensor, " so_far"], dtype: torch.dtype | None
) -> FixedCache | NoCache:
    if isinstance(cache, NoCache):
        return cache
    assert isinstance(cache, SelfCache), "only attention is compiled"
    k, v = (with_room(part.to(dtype or part.dtype), len(slots)) for part in cache.kept)
    return FixedCache(k, v, slots, dtype=cache.kept[0].dtype)


def is_in_buffers(cache: KVCache | None) -> bool:
    """Whether the cache consists of preallocated buffers, which a compiled graph can write to."""
    return cache is not None and all(
        isinstance(layer.self_cache, FixedCache | NoCache) for layer in cache
    )


def buffers(cache: KVCache | None) -> list[Tensor]:
    """The buffers of all layers, keys and values alternating."""
    return [part for layer in _layers(cache) for part in (layer.keys, layer.values)]


def computed_dtype(cache: KVCache | None) -> torch.dtype | None:
    """The type in which the model computes, whatever that of its buffers; None without buffers."""
    return next((layer.dtype for layer in _layers(cache)), None)


def room(cache: KVCache | None) -> int:
    """The capacity of the buffers, in tokens."""
    return _layers(cache)[0].keys.shape[2]


def extend(cache: KVCache | None, n: int) -> Int[Tensor, " so_far"]:
    """Set the slots to `0 … n - 1`, including the next tokens, and grow the buffers if needed."""
    slots = torch.arange(n)
    for layer in _layers(cache):
        layer.extend(slots)
    return slots


def take(cache: KVCache | None, places: Int[Tensor, "rows kept"], most: int) -> None:
    """Keep only the tokens at these slots of each row, in buffers for `most` tokens."""
    assert cache is not None
    for layer in _layers(cache):
        layer.take(places, most)
    cache.length = places.shape[1]


def _layers(cache: KVCache | None) -> list[FixedCache]:
    assert cache is not None, "a compiled model has a cache"
    caches = (layer.self_cache for layer in cache)
    return [cache for cache in caches if isinstance(cache, FixedCache)]


def branched(state: TranslationState, n: int) -> TranslationState:
    """Split each row into `n` branches that share all tokens so far."""
    assert state.cache is not None
    rows, cache = state.memory.shape[0], in_buffers(state.cache)
    slots = torch.arange(int(cache.length))
    seen = torch.ones(rows, n, len(slots), dtype=torch.bool)
    return replace(state, cache=cache, branches=Branches(seen, slots.repeat(rows, 1)))


def extended(state: TranslationState) -> TranslationState:
    """Append one slot for each branch, growing the buffers if necessary."""
    _, n, slots = _branches(state).seen.shape
    if slots + n > room(state.cache):
        state = _compacted(state)
    old = _branches(state)
    itself = torch.eye(n, dtype=torch.bool).expand(old.seen.shape[0], -1, -1)
    seen = torch.cat([old.seen, itself], dim=2)
    new = (old.positions.amax(1, keepdim=True) + 1).expand(-1, n)
    extend(state.cache, seen.shape[2])
    return replace(state, branches=Branches(seen, torch.cat([old.positions, new], dim=1)))


def selected(
    state: TranslationState, parents: Int[Tensor, " kept"], memories: Int[Tensor, " memories"]
) -> TranslationState:
    """Keep these memories, and for each an equal number of branches descending from `parents`."""
    old = _branches(state)
    state = state.select(memories, memories)
    seen, positions = old.seen[memories], old.positions[memories]
    parents = parents.view(len(memories), -1, 1).expand(-1, -1, seen.shape[2])
    return replace(state, branches=Branches(seen.gather(1, parents), positions))


def _compacted(state: TranslationState) -> TranslationState:
    """Drop the slots that no branch descends from, and double the capacity."""
    old = _branches(state)
    live = old.seen.any(1)
    n = int(live.sum(1).max())
    places = live.int().argsort(dim=1, descending=True, stable=True)[:, :n]
    seen = old.seen.gather(2, places[:, None].expand(-1, old.seen.shape[1], -1))
    take(state.cache, places, 2 * n + seen.shape[1])
    return replace(state, branches=Branches(seen, old.positions.gather(1, places)))


def _branches(state: TranslationState) -> Branches:
    assert state.branches is not None
    return state.branches
