"""Caches: stored keys and values come back in the requested order and rows."""

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.nn.attention import AttentionConfig, CrossAttention
from addnorm.nn.cache import (
    ConcatenatedCache,
    CrossCache,
    KVCache,
    SegmentMemory,
    SelfCache,
    capacity,
)
from addnorm.nn.context import Context
from addnorm.nn.fixed_cache import FixedCache
from addnorm.nn.masks import Full


@given(st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_self_cache_returns_all_so_far(sizes: list[int]) -> None:
    cache, k, v = SelfCache(), torch.randn(2, 3, sum(sizes), 4), torch.randn(2, 3, sum(sizes), 4)
    end = 0
    for size in sizes:
        new, end = slice(end, end + size), end + size
        got_k, got_v = cache.append(k[:, :, new], v[:, :, new])
        assert torch.equal(got_k, k[:, :, :end])
        assert torch.equal(got_v, v[:, :, :end])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.integers(0, 20))
def test_a_cache_keeps_the_slots_in_reach(sizes: list[int], back: int) -> None:
    cache, k = SelfCache(), torch.randn(2, 1, sum(sizes), 4)
    end = 0
    for size in sizes:
        start, end = end, end + size
        within = end - max(0, start - back)
        got, _ = cache.append(k[:, :, start:end], k[:, :, start:end], within)
        assert torch.equal(got, k[:, :, max(0, start - back) : end])


def test_a_cache_that_looks_back_stays_small() -> None:
    cache, k = SelfCache(), torch.randn(1, 1, 1, 4)
    for i in range(1000):
        got, _ = cache.append(k, k, min(i + 1, 11))
    assert got.untyped_storage().nbytes() <= 4 * (10 + 1) * 4 * 4


def test_a_long_prompt_is_forgotten_at_the_next_token() -> None:
    cache, prompt = SelfCache(), torch.randn(1, 1, 5000, 4)
    cache.append(prompt, prompt, 5000)
    for i in range(50):
        new = torch.full((1, 1, 1, 4), float(i))
        got, _ = cache.append(new, new, 11)
        assert got.untyped_storage().nbytes() <= 4 * (10 + 1) * 4 * 4
        assert got.shape[2] == 11
        assert torch.equal(got[:, :, -1:], new)


def test_segment_memory_is_the_last_inputs_without_a_gradient() -> None:
    memory = SegmentMemory(3)
    first = torch.randn(1, 2, 4, requires_grad=True)
    assert torch.equal(memory.source(first), first)
    second = torch.randn(1, 2, 4, requires_grad=True)
    whole = memory.source(second)
    assert torch.equal(whole, torch.cat([first, second], 1))
    whole.sum().backward()
    assert first.grad is None
    assert second.grad is not None
    third = torch.randn(1, 1, 4)
    assert torch.equal(memory.source(third), torch.cat([first[:, 1:], second, third], 1))
    assert torch.equal(memory.source(first, 3), torch.cat([third, first], 1))


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6))
def test_select_reorders_repeats_and_drops_rows(rows: list[int]) -> None:
    cache = KVCache([SelfCache(), SelfCache()])
    k, v = torch.randn(3, 1, 5, 4), torch.randn(3, 1, 5, 4)
    index = torch.tensor(rows)
    for layer in cache:
        layer.self_cache.append(k[:, :, :4], v[:, :, :4])
    cache.remember([(k, v)] * 2)
    cache.advance(4)
    cache.select(index)
    assert cache.length == 4
    for layer in cache:
        got_k, got_v = layer.self_cache.append(k[index, :, 4:], v[index, :, 4:])
        assert torch.equal(got_k, k[index])
        assert torch.equal(got_v, v[index])
        memory = layer.cross_cache.kept
        assert torch.equal(memory[0], k[index])
        assert torch.equal(memory[1], v[index])


def test_selected_rows_go_their_own_ways() -> None:
    cache = SelfCache()
    cache.append(torch.zeros(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
    cache.select(torch.tensor([0, 0]))
    new = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)
    k, _ = cache.append(new, new)
    assert k[:, 0, :, 0].tolist() == [[0.0, 1.0], [0.0, 2.0]]


@pytest.mark.parametrize("back", [inf, 3])
def test_rows_selected_at_every_token_are_those_moved_by_hand(back: float) -> None:
    cache, held = SelfCache(), torch.empty(2, 1, 0, 4)
    for i in range(40):
        new = torch.randn(held.shape[0], 1, 1, 4)
        held = torch.cat([held, new], dim=2)
        reach = held[:, :, -int(min(back, 40)) - 1 :]
        keys, values = cache.append(new, new + 1, reach.shape[2])
        assert torch.equal(keys, reach)
        assert torch.equal(values, reach + 1)
        rows = torch.randint(held.shape[0], (3 if i < 20 else 2,))
        held = held[rows]
        cache.select(rows)


def test_an_empty_cache() -> None:
    cache = KVCache([SelfCache() for _ in range(3)])
    cache.select(torch.tensor([0, 0]))
    assert cache.length == 0
    assert len(list(cache)) == 3


def test_cross_cache_projects_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attention, cache = AttentionConfig(n_heads=2).build_cross(6), CrossCache()
    x, memory = torch.randn(1, 3, 6), torch.randn(1, 4, 6)
    ctx = Context.over(x, Full()).attending(memory)
    first = attention(x, ctx, cache)
    assert torch.equal(first, attention(x, ctx))
    monkeypatch.setattr(CrossAttention, "remember", lambda *given: pytest.fail("projected twice"))
    assert torch.equal(attention(x, ctx, cache), first)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_cache_keeps_the_type(dtype: torch.dtype) -> None:
    k = torch.randn(1, 2, 3, 4).to(dtype)
    got, _ = SelfCache().append(k, k)
    assert got.dtype == dtype
    assert torch.equal(got, k)


@pytest.mark.parametrize("back", [inf, 0, 3])
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8), prefix=st.integers(0, 6))
def test_the_caches_of_graphs_give_what_the_eager_one_does(
    back: float, sizes: list[int], prefix: int
) -> None:
    """In a buffer with room, which is written to, and joined anew, which leaves the past alone."""
    k = torch.randn(2, 3, prefix + sum(sizes), 4)
    eager, room = SelfCache(), torch.zeros(2, 3, 64, 4)
    eager.append(k[:, :, :prefix], -k[:, :, :prefix])
    room[:, :, :prefix] = k[:, :, :prefix]
    fixed = FixedCache(room.clone(), -room, torch.arange(prefix))
    joined = ConcatenatedCache(k[:, :, :prefix], -k[:, :, :prefix])
    end = prefix
    for size in sizes:
        new, within = k[:, :, end : end + size], int(min(back, end)) + size
        end += size
        past = [part.clone() for part in joined.kept]
        given = joined.kept
        fixed.extend(torch.arange(end))
        for want, *found in zip(
            *(cache.append(new, -new, within) for cache in (eager, fixed, joined)), strict=True
        ):
            assert all(torch.equal(got, want) for got in found)
        assert all(torch.equal(a, b) for a, b in zip(given, past, strict=True))
        assert torch.equal(joined.kept[0], k[:, :, :end])
    x = k[0]
    assert fixed.source(x) is joined.source(x) is x
    rows = torch.tensor([1, 0, 1])
    joined.select(rows)
    assert torch.equal(joined.kept[1], -k[rows][:, :, :end])


def test_a_cache_remembers_what_its_layers_look_at() -> None:
    cache, pairs = KVCache([SelfCache(), SelfCache()]), [(torch.randn(1, 1, 2, 3),) * 2] * 2
    cache.remember(pairs)
    for layer, pair in zip(cache, pairs, strict=True):
        assert layer.cross_cache.kept[0] is pair[0]
    with pytest.raises(ValueError, match="shorter"):
        cache.remember(pairs[:1])


@given(n=st.integers(1, 5000), rows=st.integers(1, 400))
def test_buffers_seldom_grow(n: int, rows: int) -> None:
    """They hold what they must, at most twice as much of what is long, and grow by doubling."""
    slots = capacity(n, rows)
    assert n <= slots <= max(2 * n, 32, 256 // rows)
    assert capacity(slots + 1, rows) >= 2 * slots - 256 // rows


def test_tokens_taken_of_each_row_make_room_for_more() -> None:
    keys, values = torch.randn(2, 3, 2, 8, 4)
    cache = FixedCache(keys, values, torch.arange(6))
    places = torch.tensor([[0, 5], [3, 1], [4, 4]])
    cache.take(places, most=5)
    assert cache.keys.shape[2] >= 5
    assert cache.slots.tolist() == [0, 1]
    for row, kept in enumerate(places):
        assert torch.equal(cache.keys[row, :, :2], keys[row][:, kept])
        assert torch.equal(cache.values[row, :, :2], values[row][:, kept])
    cache.select(torch.tensor([2, 0, 0]))
    assert torch.equal(cache.keys[0, :, :2], keys[2][:, [4, 4]])
