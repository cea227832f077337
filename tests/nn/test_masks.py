"""Masks: checked pair by pair, and the evaluated form for cores."""

import itertools
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from addnorm.nn.masks import (
    Blocks,
    Branches,
    Causal,
    Dense,
    Full,
    Mask,
    Padding,
    Prefix,
    Segments,
    Tiled,
    Window,
)

VALID = torch.tensor([[True, True, False, False], [False, True, True, True]])
IDS = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 2]])
SEEN = torch.tensor([[[1, 0, 1, 0], [1, 0, 0, 1]], [[0, 1, 1, 0], [1, 0, 0, 1]]]).bool()
PLACES = torch.tensor([[0, 1, 2, 2]] * 2)
SLOTS = torch.arange(4)


def table(mask: Mask, q: Tensor = SLOTS, kv: Tensor = SLOTS, batch: int = 2) -> Tensor:
    return mask.dense(q, kv, batch).expand(batch, 1, len(q), len(kv))[:, 0]


def by_hand(rule: object, q: Tensor = SLOTS, kv: Tensor = SLOTS, batch: int = 2) -> Tensor:
    verdicts = [
        [[bool(rule(b, i, j)) for j in kv.tolist()] for i in q.tolist()] for b in range(batch)
    ]  # type: ignore[operator]
    return torch.tensor(verdicts, dtype=torch.bool).view(batch, len(q), len(kv))


RULES = {
    "full": (Full(), lambda b, i, j: True),
    "causal": (Causal(), lambda b, i, j: j <= i),
    "window": (Window(2), lambda b, i, j: abs(i - j) < 2),
    "window 1": (Window(1), lambda b, i, j: i == j),
    "padding": (Padding(VALID), lambda b, i, j: VALID[b, j]),
    "segments": (Segments(IDS), lambda b, i, j: IDS[b, i] == IDS[b, j]),
    "blocks": (Blocks(2, 0), lambda b, i, j: i // 2 == j // 2),
    "neighbouring blocks": (Blocks(1, 1), lambda b, i, j: abs(i - j) <= 1),
    "global block": (Blocks(2, 0, 1), lambda b, i, j: i // 2 == j // 2 or min(i, j) < 2),
    "prefix": (Prefix(torch.tensor([2, 3])), lambda b, i, j: j <= i or j < (2, 3)[b]),
    "branches": (Branches(SEEN.repeat(1, 2, 1), PLACES), lambda b, i, j: SEEN[b, i % 2, j]),
    "sliding window": (Causal() & Window(3), lambda b, i, j: i - 3 < j <= i),
}


@pytest.mark.parametrize("name", RULES)
def test_each_pair(name: str) -> None:
    mask, rule = RULES[name]
    assert torch.equal(table(mask), by_hand(rule))


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations_with_replacement(RULES, 2)))
def test_and_allows_what_both_allow(a: str, b: str) -> None:
    first, second = RULES[a][0], RULES[b][0]
    assert torch.equal(table(first & second), table(first) & table(second))


def test_branches_are_the_last_slots() -> None:
    evaluated = Branches(SEEN, PLACES).on(SLOTS[2:], SLOTS, 2)
    assert torch.equal(evaluated.allowed, SEEN[:, None])
    assert torch.equal(table(Branches(SEEN, PLACES), SLOTS[2:]), SEEN)


def test_and_adds_nothing_needless() -> None:
    causal, padding = Causal(), Padding(VALID)
    assert Full() & causal is causal
    assert causal & Full() is causal
    assert isinstance(Causal() & Causal(), Causal)
    assert padding & padding is padding
    assert Window(2) & Window(2) == Window(2)
    assert Full() & Full() == Full()


def test_the_form_for_the_core() -> None:
    assert isinstance(Full().on(SLOTS, SLOTS, 2), Full)
    assert isinstance(Causal().on(SLOTS, SLOTS, 2), Causal)
    assert isinstance((Causal() & Padding(VALID)).on(SLOTS, SLOTS, 2), Dense)
    assert isinstance(Causal().on(SLOTS[-1:], SLOTS, 2), Full)  # the last token sees all


@given(past=st.integers(0, 9), new=st.integers(0, 9), window=st.integers(1, 12))
def test_cached_chunks_see_what_they_would_see_uncached(past: int, new: int, window: int) -> None:
    """Never torch's `is_causal`, which is aligned to the top left, where lengths differ."""
    slots = torch.arange(past + new)
    for mask in (Causal(), Causal() & Window(window)):
        whole = mask.dense(slots, slots, 1)[..., past:, :]
        form = mask.on(slots[past:], slots, 1)
        assert isinstance(form, Full | Causal | Dense)
        if isinstance(form, Causal):
            assert past == 0
        got = form.allowed if isinstance(form, Dense) else form.dense(slots[past:], slots, 1)
        assert torch.equal(got, whole)


@pytest.mark.parametrize("name", RULES)
def test_nothing_beyond_its_reach_is_allowed(name: str) -> None:
    mask, _ = RULES[name]
    back, ahead = mask.reach
    far = (SLOTS[:, None] - back > SLOTS) | (SLOTS[:, None] + ahead < SLOTS)
    assert not bool((table(mask) & far).any())


@pytest.mark.parametrize("mask", [Blocks(2, 0, 1), Prefix(torch.tensor([2, 2]))])
def test_masks_that_count_follow_the_text_and_not_the_padding(mask: Mask) -> None:
    """With two slots of padding before it, a text of four sees what it saw without them."""
    padded = mask.at(torch.tensor([[0, 0, 0, 1, 2, 3]]))
    slots = torch.arange(6)
    assert torch.equal(table(padded, slots, slots)[:, 2:, 2:], table(mask))


def test_a_dense_mask_allows_what_it_holds() -> None:
    allowed = torch.rand(2, 1, 4, 4) > 0.5
    assert torch.equal(table(Dense(allowed)), allowed[:, 0])
    assert torch.equal(table(Dense(allowed[:1])), allowed[:1, 0].expand(2, 4, 4))
    assert torch.equal(table(Dense(allowed) & Causal()), allowed[:, 0].tril())
    with pytest.raises(IndexError):
        Dense(allowed).dense(SLOTS, SLOTS, 4)


@pytest.mark.parametrize("mask", [Full(), Causal(), Window(2), Padding(VALID[:, :0])])
def test_no_slots_at_all(mask: Mask) -> None:
    assert mask.dense(SLOTS[:0], SLOTS[:0], 2).numel() == 0


@pytest.mark.parametrize("size", [0, -1])
def test_an_empty_window_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=str(size)):
        Window(size)


def test_a_mask_on_its_slots_allows_the_same_pairs() -> None:
    inner, slots = Causal() & Window(3), torch.arange(6)
    tiled = Tiled(inner, slots, slots, 2)
    row, q, kv = torch.zeros(1, 1, dtype=torch.long), slots[:, None], slots[None]
    assert torch.equal(tiled.allows(row, q, kv), inner.dense(slots, slots, 1)[0, 0])
    assert tiled.reach == (inf, inf)
    assert Tiled(inner, slots, slots, 2, inner.reach).reach == inner.reach
    assert torch.equal(
        tiled.tile(slice(1, 4), slice(2, 5)).allowed,
        inner.dense(slots[1:4], slots[2:5], 2),
    )
