"""Preallocated buffers grow with new tokens; branches keep their history in them."""

from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.generate.buffers import (
    branched,
    buffers,
    extend,
    extended,
    in_buffers,
    is_in_buffers,
    room,
    selected,
    take,
)
from addnorm.models.step import TranslationState
from addnorm.nn import cache, fixed_cache
from addnorm.nn.cache import CrossCache, KVCache, SelfCache
from addnorm.nn.recurrent import StateCache


def read(back: float, n: int, rows: int = 2) -> tuple[KVCache, torch.Tensor]:
    keys, cache = torch.randn(rows, 3, n, 4), KVCache([SelfCache(), SelfCache()], length=n)
    memory = torch.randn(rows, 5, 2, 4).transpose(1, 2)
    for layer, within in zip(cache, (int(min(back, n - 1)) + 1, n), strict=True):
        layer.self_cache.append(keys[:, :, :-1], keys[:, :, :-1] + 1)
        layer.self_cache.append(keys[:, :, -1:], keys[:, :, -1:] + 1, within)
        layer.cross_cache = CrossCache((memory, memory))
    return cache, keys


@pytest.mark.parametrize("back", [inf, 3])
def test_tokens_within_reach_of_the_next_one_keep_their_slots(back: float) -> None:
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


def test_buffers_grow_without_losing_tokens() -> None:
    cache, keys = read(inf, 30)
    fixed, expected = in_buffers(cache), keys
    n_room = room(fixed)
    for n in range(31, n_room + 4):
        new = torch.randn(2, 3, 1, 4)
        expected = torch.cat([expected, new], dim=2)
        assert len(extend(fixed, n)) == n
        for layer in fixed:
            k, v = layer.self_cache.append(new, new + 1)
            assert torch.equal(k, expected)
            assert torch.equal(v[:, :, -1:], new + 1)
    assert room(fixed) == 2 * n_room


def test_take_and_select_keep_the_given_slots_and_rows() -> None:
    cache, keys = read(inf, 6)
    fixed, places = in_buffers(cache), torch.tensor([[0, 3], [5, 1]])
    take(fixed, places, 40)
    assert (fixed.length, room(fixed)) == (2, 128)
    fixed.select(torch.tensor([1, 1, 0]))
    want = torch.stack([keys[1, :, [5, 1]], keys[1, :, [5, 1]], keys[0, :, [0, 3]]])
    for part in buffers(fixed)[::2]:
        assert torch.equal(part[:, :, :2], want)


def test_the_state_of_another_mixer_is_not_in_buffers() -> None:
    assert not is_in_buffers(KVCache([SelfCache(), StateCache(1, 4)]))


def begun(rows: int, branches: int, prefix: int) -> TranslationState:
    """After a prefix whose keys are -1, -2, and so on."""
    cache = KVCache([SelfCache()], length=prefix)
    keys = -torch.arange(1.0, prefix + 1).view(1, 1, prefix, 1).repeat(rows, 2, 1, 3)
    [layer] = cache
    layer.self_cache.append(keys, keys)
    memory = torch.arange(rows * 6.0).view(rows, 1, 2, 3)
    return branched(TranslationState.after([(memory, memory)], None, cache), branches)


def _allocate_no_spare_slots(patch: pytest.MonkeyPatch) -> None:
    for module in (cache, fixed_cache):
        patch.setattr(module, "capacity", lambda n, rows: n)


@given(
    rows=st.integers(1, 3),
    branches=st.integers(1, 4),
    prefix=st.integers(1, 3),
    steps=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
@pytest.mark.long
def test_each_branch_sees_only_its_ancestors(
    rows: int, branches: int, prefix: int, steps: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        _allocate_no_spare_slots(patch)
        state = begun(rows, branches, prefix)
        stories = [[[-i - 1.0 for i in range(prefix)]] for _ in range(rows)]
        memories = torch.arange(rows)
        for step in range(steps):
            width = len(stories[0])
            parents = torch.randint(width, (len(stories), branches), generator=draw)
            chosen = [i for i in range(len(stories)) if torch.rand(1, generator=draw) < 0.9] or [0]
            state = selected(state, parents[chosen].flatten(), torch.tensor(chosen))
            stories = [[[*stories[i][j]] for j in parents[i].tolist()] for i in chosen]
            memories = memories[chosen]

            state = extended(state)
            assert state.branches is not None
            assert state.cache is not None
            seen, positions = state.branches.seen, state.branches.positions
            keys, values = buffers(state.cache)
            new = torch.arange(len(stories) * branches).view(-1, 1, branches, 1) + 100.0 * step
            keys[:, :, seen.shape[2] - branches : seen.shape[2]] = new
            values[:, :, seen.shape[2] - branches : seen.shape[2]] = new
            state.cache.advance(branches)
            for i, story in enumerate(stories):
                for j in range(branches):
                    story[j].append(float(new[i, 0, j, 0]))
                    at = seen[i, j].nonzero()[:, 0]
                    assert positions[i, at].sort().values.tolist() == list(range(len(story[j])))
                    in_order = at[positions[i, at].argsort()]
                    for held in (keys, values):
                        assert held[i, 1, in_order, 2].tolist() == story[j]
            # What each looks at goes with it.
            [layer] = state.cache
            assert layer.cross_cache.kept[0][:, 0, 0, 0].tolist() == (memories * 6.0).tolist()
            assert state.memory.shape == (len(stories), 2, 0)


def test_slots_without_descendants_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    _allocate_no_spare_slots(monkeypatch)
    state = begun(2, 4, 1)
    for _ in range(2, 30):  # all descend from the first branch, so one slot a step stays
        state = extended(state)
        assert state.cache is not None
        state.cache.advance(4)
        state = selected(state, torch.tensor([0] * 8), torch.arange(2))
    assert state.branches is not None
    assert state.branches.seen.shape[2] <= buffers(state.cache)[0].shape[2] < 2 * 30 + 4 < 4 * 29
