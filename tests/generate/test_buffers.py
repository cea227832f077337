"""Preallocated buffers hold the cached keys and values, and grow with new tokens."""

from math import inf

import pytest
import torch

from addnorm.generate.buffers import buffers, extend, in_buffers, is_in_buffers, room, take
from addnorm.nn.cache import KVCache, SelfCache
from addnorm.nn.recurrent import StateCache


def read(back: float, n: int, rows: int = 2) -> tuple[KVCache, torch.Tensor]:
    keys, cache = torch.randn(rows, 3, n, 4), KVCache([SelfCache(), SelfCache()], length=n)
    memory = torch.randn(rows, 5, 2, 4).transpose(1, 2)
    for layer, within in zip(cache, (int(min(back, n - 1)) + 1, n), strict=True):
        layer.self_cache.append(keys[:, :, :-1], keys[:, :, :-1] + 1)
        layer.self_cache.append(keys[:, :, -1:], keys[:, :, -1:] + 1, within)
        layer.cross_cache.once(lambda: (memory, memory))
    return cache, keys


@pytest.mark.parametrize("back", [inf, 3])
def test_what_is_in_reach_of_the_next_token_stands_at_its_place(back: float) -> None:
    cache, keys = read(back, 300)
    fixed = in_buffers(cache)
    assert is_in_buffers(fixed)
    assert not is_in_buffers(cache)
    assert (fixed.length, room(fixed)) == (300, 512)
    first = 300 - int(min(back, 300))
    for k, v in zip(buffers(fixed)[::2], buffers(fixed)[1::2], strict=True):
        assert torch.equal(k[:, :, first:300], keys[:, :, first:])
        assert torch.equal(v[:, :, first:300], keys[:, :, first:] + 1)
    memories = [part for layer in fixed for part in layer.cross_cache.kept]
    assert all(part.is_contiguous() for part in memories)
    assert len(memories) == 4


def test_tokens_beyond_the_room_find_more_and_lose_nothing() -> None:
    cache, keys = read(inf, 30)
    fixed, held = in_buffers(cache), keys
    n_room = room(fixed)
    for n in range(31, n_room + 4):
        new = torch.randn(2, 3, 1, 4)
        held = torch.cat([held, new], dim=2)
        assert len(extend(fixed, n)) == n
        for layer in fixed:
            k, v = layer.self_cache.append(new, new + 1)
            assert torch.equal(k, held)
            assert torch.equal(v[:, :, -1:], new + 1)
    assert room(fixed) == 2 * n_room


def test_places_and_rows_that_are_taken() -> None:
    cache, keys = read(inf, 6)
    fixed, places = in_buffers(cache), torch.tensor([[0, 3], [5, 1]])
    take(fixed, places, 40)
    assert (fixed.length, room(fixed)) == (2, 128)
    fixed.select(torch.tensor([1, 1, 0]))
    want = torch.stack([keys[1, :, [5, 1]], keys[1, :, [5, 1]], keys[0, :, [0, 3]]])
    for part in buffers(fixed)[::2]:
        assert torch.equal(part[:, :, :2], want)


def test_no_graph_can_fill_what_another_mixer_keeps() -> None:
    assert not is_in_buffers(KVCache([SelfCache(), StateCache(1, 4)]))
