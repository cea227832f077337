"""Branches keep their own history through selection and compaction."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.generate.branches import branched, extended, selected
from addnorm.generate.buffers import buffers
from addnorm.models.step import TranslationState
from addnorm.nn import cache as caches
from addnorm.nn.cache import KVCache, SelfCache


def begun(rows: int, branches: int, prefix: int) -> TranslationState:
    """After a prefix whose keys are -1, -2, and so on."""
    cache = KVCache([SelfCache()], length=prefix)
    keys = -torch.arange(1.0, prefix + 1).view(1, 1, prefix, 1).repeat(rows, 2, 1, 3)
    [layer] = cache
    layer.self_cache.append(keys, keys)
    memory = torch.arange(rows * 6.0).view(rows, 1, 2, 3)
    return branched(TranslationState.after([(memory, memory)], None, cache), branches)


@given(
    rows=st.integers(1, 3),
    branches=st.integers(1, 4),
    prefix=st.integers(1, 3),
    steps=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
@pytest.mark.long
def test_each_branch_sees_its_ancestors_alone(
    rows: int, branches: int, prefix: int, steps: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caches, "capacity", lambda n, rows: n)
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


def test_what_no_branch_descends_from_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "capacity", lambda n, rows: n)
    state = begun(2, 4, 1)
    for _ in range(2, 30):  # all descend from the first branch, so one slot a step stays
        state = extended(state)
        assert state.cache is not None
        state.cache.advance(4)
        state = selected(state, torch.tensor([0] * 8), torch.arange(2))
    assert state.branches is not None
    assert state.branches.seen.shape[2] <= buffers(state.cache)[0].shape[2] < 2 * 30 + 4 < 4 * 29
