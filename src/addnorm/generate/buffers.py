"""Buffers: what a cache keeps, in tensors with room for more, as a compiled graph fills them."""

import torch
from jaxtyping import Int
from torch import Tensor

from addnorm.nn.cache import CrossCache, FixedCache, KVCache, SelfCache, with_room


def in_buffers(cache: KVCache) -> KVCache:
    """The keys and values of a cache of attention alone, in buffers with room for more."""
    n = int(cache.length)
    slots = torch.arange(n)
    kept = [layer.self_cache for layer in cache if isinstance(layer.self_cache, SelfCache)]
    layers = [
        FixedCache(with_room(one.kept[0], n), with_room(one.kept[1], n), slots, one.back)
        for one in kept
    ]
    fixed = KVCache(layers, length=n)
    for new, old in zip(fixed, cache, strict=True):
        if kept := old.cross_cache.kept:
            new.cross_cache = CrossCache((kept[0].contiguous(), kept[1].contiguous()))
    return fixed


def is_in_buffers(cache: KVCache | None) -> bool:
    """Whether a graph can fill it."""
    return cache is not None and len(_layers(cache)) == len(cache.layers)


def buffers(cache: KVCache | None) -> list[Tensor]:
    """The keys and values of each layer, in turn."""
    return [part for layer in _layers(cache) for part in (layer.keys, layer.values)]


def room(cache: KVCache | None) -> int:
    """How many tokens there is room for."""
    return _layers(cache)[0].keys.shape[2]


def extend(cache: KVCache | None, n: int) -> Int[Tensor, " so_far"]:
    """Number all tokens up to `n`, those to be read next included, and make room for them."""
    slots = torch.arange(n)
    for layer in _layers(cache):
        layer.extend(slots)
    return slots


def take(cache: KVCache | None, places: Int[Tensor, "rows kept"], most: int) -> None:
    """Keep the tokens at these places of each row alone, with room for `most`."""
    assert cache is not None
    for layer in _layers(cache):
        layer.take(places, most)
    cache.length = places.shape[1]


def _layers(cache: KVCache | None) -> list[FixedCache]:
    assert cache is not None, "a compiled model keeps what it has read"
    caches = (layer.self_cache for layer in cache)
    return [cache for cache in caches if isinstance(cache, FixedCache)]
