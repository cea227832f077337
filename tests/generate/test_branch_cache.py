"""Branches of a row keep their own history, whatever is selected and whatever is forgotten."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from addnorm.generate import compiled
from addnorm.generate.compiled import BranchCache
from addnorm.nn.cache import KVCache, SelfCache


def begun(rows: int, branches: int, prefix: int) -> BranchCache:
    """After a prefix whose keys are -1, -2, and so on."""
    cache = KVCache([SelfCache()], length=prefix)
    keys = -torch.arange(1.0, prefix + 1).view(1, 1, prefix, 1).repeat(rows, 2, 1, 3)
    [layer] = cache
    layer.self_cache.append(keys, keys)
    return BranchCache(cache, branches)


@given(
    rows=st.integers(1, 3),
    branches=st.integers(1, 4),
    prefix=st.integers(1, 3),
    steps=st.integers(1, 12),
    seed=st.integers(0, 10**6),
)
def test_each_branch_sees_its_ancestors_alone(
    rows: int, branches: int, prefix: int, steps: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "_capacity", lambda n, rows: n)
        cache = begun(rows, branches, prefix)
        stories = [[[-i - 1.0 for i in range(prefix)]] for _ in range(rows)]
        sentences = list(range(rows))
        for step in range(steps):
            width = len(stories[0])
            parents = torch.randint(width, (len(stories), branches), generator=draw)
            chosen = [i for i in range(len(stories)) if torch.rand(1, generator=draw) < 0.9] or [0]
            first = torch.tensor(chosen)[:, None] * width
            cache.select((first + parents[chosen]).flatten(), torch.tensor(chosen))
            stories = [[[*stories[i][j]] for j in parents[i].tolist()] for i in chosen]
            sentences = [sentences[i] for i in chosen]

            seen, positions, (keys, values) = cache.branches(prefix + step + 1)
            new = torch.arange(len(stories) * branches).view(-1, 1, branches, 1) + 100.0 * step
            keys[:, :, seen.shape[2] - branches : seen.shape[2]] = new
            values[:, :, seen.shape[2] - branches : seen.shape[2]] = new
            for i, story in enumerate(stories):
                for j in range(branches):
                    story[j].append(float(new[i, 0, j, 0]))
                    at = seen[i, j].nonzero()[:, 0]
                    assert positions[i, at].sort().values.tolist() == list(range(len(story[j])))
                    in_order = at[positions[i, at].argsort()]
                    for held in (keys, values):
                        assert held[i, 1, in_order, 2].tolist() == story[j]


def test_what_no_branch_descends_from_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "_capacity", lambda n, rows: n)
    cache = begun(2, 4, 1)
    for n in range(2, 30):  # all descend from the first branch, so one slot a step stays
        seen, _, [keys, _] = cache.branches(n)
        cache.select(torch.tensor([0] * 4 + [4] * 4), torch.arange(2))
    assert seen.shape[2] <= keys.shape[2] < 2 * 30 + 4 < 4 * 29
