"""Preallocated key/value buffers for compiled graphs."""

import torch
from jaxtyping import Int
from torch import Tensor

from addnorm.nn.cache import CrossCache, FixedCache, KVCache, SelfCache, with_room


def in_buffers(cache: KVCache) -> KVCache:
    """Copy a cache (attention layers only) into preallocated buffers."""
    n = int(cache.length)
    slots = torch.arange(n)
    kept = [layer.self_cache for layer in cache if isinstance(layer.self_cache, SelfCache)]
    layers = [
        FixedCache(with_room(one.kept[0], n), with_room(one.kept[1], n), slots) for one in kept
    ]
    fixed = KVCache(layers, length=n)
    for new, old in zip(fixed, cache, strict=True):
        if kept := old.cross_cache.kept:
            new.cross_cache = CrossCache((kept[0].contiguous(), kept[1].contiguous()))
    return fixed


def is_in_buffers(cache: KVCache | None) -> bool:
    """Whether the cache consists of preallocated buffers, which a compiled graph can fill."""
    return cache is not None and len(_layers(cache)) == len(cache.layers)


def buffers(cache: KVCache | None) -> list[Tensor]:
    """The buffers of all layers, keys and values alternating."""
    return [part for layer in _layers(cache) for part in (layer.keys, layer.values)]


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
    """Keep only the tokens at these slots of each row, with capacity for `most`."""
    assert cache is not None
    for layer in _layers(cache):
        layer.take(places, most)
    cache.length = places.shape[1]


def _layers(cache: KVCache | None) -> list[FixedCache]:
    assert cache is not None, "a compiled model keeps what it has read"
    caches = (layer.self_cache for layer in cache)
    return [cache for cache in caches if isinstance(cache, FixedCache)]
