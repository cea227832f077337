"""Context: positions skip padding and restart in each document; shapes are checked."""

from contextlib import nullcontext
from math import inf
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from addnorm.checking.long_texts import small_limits
from addnorm.nn.attention.kernels import allowed_of
from addnorm.nn.context import Context, positions_of
from addnorm.nn.masks import Blocks, Causal, Dense, Evaluated, Full, Prefix, Window

TOKENS = torch.zeros(2, 4, dtype=torch.long)
LEFT = torch.tensor([[False, False, True, True], [True] * 4])
RIGHT = torch.tensor([[True, True, False, False], [True] * 4])


@pytest.mark.parametrize(
    ("valid", "segments", "expected"),
    [
        (None, None, [[0, 1, 2, 3]]),
        ([[0, 0, 1, 1]], None, [[0, 0, 0, 1]]),
        ([[1, 1, 0, 0]], None, [[0, 1, 1, 1]]),
        ([[0, 0, 0, 0]], None, [[0, 0, 0, 0]]),
        (None, [[5, 5, 2, 2]], [[0, 1, 0, 1]]),
        (None, [[7, 7, 7, 7]], [[0, 1, 2, 3]]),
        (None, [[0, 1, 2, 3]], [[0, 0, 0, 0]]),
        ([[1, 1, 1, 0]], [[0, 0, 1, 1]], [[0, 1, 0, 0]]),
        ([[0, 1, 1, 1]], [[0, 0, 0, 1]], [[0, 0, 1, 0]]),
        ([[0, 0, 1, 1]], [[0, 0, 1, 1]], [[0, 0, 0, 1]]),
        ([[1, 0, 0, 1]], [[3, 0, 3, 3]], [[0, 0, 0, 1]]),  # padding interrupts no segment
        ([[1, 0, 1, 1]], [[3, 3, 4, 4]], [[0, 0, 0, 1]]),
    ],
)
def test_positions(
    valid: list[list[int]] | None, segments: list[list[int]] | None, expected: object
) -> None:
    got = positions_of(
        torch.arange(4),
        None if valid is None else torch.tensor(valid).bool(),
        None if segments is None else torch.tensor(segments),
    )
    assert got.tolist() == expected


def test_positions_continue_after_a_cache() -> None:
    whole = Context.over(TOKENS, Causal(), valid=LEFT)
    part = Context.over(TOKENS[:, :1], Causal(), valid=LEFT, past=3)
    assert torch.equal(part.positions, whole.positions[:, 3:])
    assert part.q_slots.tolist() == [3]
    assert part.kv_slots.tolist() == [0, 1, 2, 3]
    assert part.valid is not None
    assert torch.equal(part.valid, LEFT[:, 3:])


def test_positions_may_be_given() -> None:
    """Slots that are no line of text, as those of branches, say where they stand."""
    given = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 2]])
    ctx = Context.over(TOKENS[:, :2], Causal(), past=2, positions=given)
    assert torch.equal(ctx.kv_positions, given)
    assert torch.equal(ctx.positions, given[:, 2:])


ROWS = st.integers(1, 80).flatmap(lambda n: st.lists(st.booleans(), min_size=n, max_size=n))
"""Which tokens of a row are real; those of more than 64 are measured in small tiles."""


@given(ROWS, st.integers(0, 5), st.data())
def test_what_later_tokens_can_reach_is_counted_in_tokens(
    row: list[bool], back: int, data: st.DataObject
) -> None:
    past = data.draw(st.integers(0, len(row)))
    valid = torch.tensor([row])
    tokens = torch.zeros(1, len(row) - past, dtype=torch.long)
    ctx = Context.over(tokens, Causal(), valid=valid, past=past)
    before = [s for s in range(past) if row[s]]
    reached = before[-back:] if back else []
    first = min(reached, default=past)
    assert ctx.first_in_reach(back) == first
    real = [s for s, one in enumerate(row) if one]
    widest = max((b - real[max(i - back, 0)] for i, b in enumerate(real)), default=0)
    with small_limits():
        spans = Context.over(valid.long(), Full(), valid=valid).spans((back, 0))
    assert spans[0] in (widest, inf)
    assert (spans[0] == inf) == (len(row) <= 64 and back > 0)
    assert spans[1] == 0


def test_a_memory_may_be_nothing_but_a_shape() -> None:
    valid = torch.tensor([[True, True, False], [True] * 3])
    ctx = Context.over(TOKENS, Causal())
    empty = ctx.attending(torch.empty(2, 3, 0), valid).memory.mask
    assert torch.equal(
        empty.allowed, ctx.attending(torch.randn(2, 3, 8), valid).memory.mask.allowed
    )


def test_the_mask_gathers_padding_and_segments() -> None:
    segments = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]])
    ctx = Context.over(TOKENS, Causal(), valid=RIGHT, segments=segments).restrict(Window(2))
    assert isinstance(ctx.mask, Dense)
    for b in range(2):
        for q in range(4):
            for kv in range(4):
                may = kv <= q and q - kv < 2 and RIGHT[b, kv] and segments[b, q] == segments[b, kv]
                assert bool(ctx.mask.allowed[b, 0, q, kv]) == bool(may)


def test_without_padding_the_kernel_may_choose_its_own_causal_path() -> None:
    assert isinstance(Context.over(TOKENS, Causal()).restrict(Full()).mask, Causal)


def test_memory_mask() -> None:
    memory, valid = torch.randn(2, 3, 8), torch.tensor([[True, True, False], [True] * 3])
    ctx = Context.over(TOKENS, Causal())
    assert isinstance(ctx.attending(memory).memory.mask, Full)
    mask = ctx.attending(memory, valid).memory.mask
    assert isinstance(mask, Dense)
    assert torch.equal(mask.allowed, valid[:, None, None].expand(2, 1, 4, 3))


PATTERNS = (Full(), Window(2), Causal(), Blocks(2), Window(2) & Causal())


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=9), st.randoms(), st.data())
def test_a_part_has_its_rows_of_the_mask_in_the_order_of_its_keys(
    changes: list[int], random: Random, data: st.DataObject
) -> None:
    """Whatever the slots, also one alone, and whatever the mask speaks of."""
    n = len(changes)
    tokens = torch.zeros(2, n, dtype=torch.long)
    valid = torch.tensor([[random.random() < 0.7 for _ in range(n)] for _ in range(2)])
    segments = torch.tensor([changes, [0] * n]).cumsum(1)
    mask = random.choice([Causal(), Full(), Prefix(torch.tensor([0, n // 2]))])
    ctx = Context.over(
        tokens,
        mask,
        valid=random.choice([valid, None]),
        segments=random.choice([segments, None]),
    )
    places = random.sample(range(n), n)
    own = data.draw(st.integers(1, n))
    slots, others = torch.tensor(places[:own]), torch.tensor(places[own:], dtype=torch.long)
    part = ctx.part(slots, others)
    assert torch.equal(part.positions, ctx.positions[:, slots])
    keys = torch.cat([others, slots])
    for pattern in PATTERNS:
        whole = ctx.restrict(pattern)
        for limits in (nullcontext(), small_limits()):
            with limits:
                few = part.restrict(pattern)
            allowed = dense(few.mask, 2, own, n)
            assert torch.equal(allowed, dense(whole.mask, 2, n, n)[:, slots][..., keys])


def dense(mask: Evaluated, batch: int, n_q: int, n_kv: int) -> Tensor:
    """A mask as a tensor of all pairs of each row."""
    allowed = allowed_of(mask, torch.zeros(batch, 1, n_q, 1), torch.zeros(batch, 1, n_kv, 1))
    whole = torch.ones(batch, n_q, n_kv, dtype=torch.bool)
    return whole if allowed is None else whole & allowed[:, 0]


def test_a_part_has_its_rows_of_the_mask_of_a_memory() -> None:
    memory, valid = torch.randn(2, 3, 8), torch.tensor([[True, True, False], [True] * 3])
    ctx = Context.over(TOKENS, Causal())
    some, rest = torch.tensor([0, 3]), torch.tensor([1, 2])
    assert isinstance(ctx.attending(memory).part(some, rest).memory.mask, Full)
    for limits in (nullcontext(), small_limits()):
        with limits:
            mask = ctx.attending(memory, valid).part(some, rest).memory.mask
        assert torch.equal(dense(mask, 2, 2, 3), valid[:, None].expand(2, 2, 3))


@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("shape", [(2, 3), (2, 5), (1, 4), (3, 4)])
@pytest.mark.parametrize("name", ["valid", "segments"])
def test_shapes_that_disagree_are_refused(name: str, shape: tuple[int, int]) -> None:
    tensor: Tensor = torch.ones(shape, dtype=torch.bool if name == "valid" else torch.long)
    with pytest.raises(ValueError, match=rf"{name} must have shape \(2, 4\)"):
        Context.over(TOKENS, Causal(), **{name: tensor})


@pytest.mark.usefixtures("types_unchecked")
def test_valid_must_cover_the_cached_slots() -> None:
    with pytest.raises(ValueError, match=r"\(2, 6\), got \(2, 4\)"):
        Context.over(TOKENS, Causal(), valid=LEFT, past=2)


@pytest.mark.usefixtures("types_unchecked")
def test_memory_must_match() -> None:
    ctx = Context.over(TOKENS, Causal())
    with pytest.raises(ValueError, match="memory has 3 rows, which 2 rows cannot share evenly"):
        ctx.attending(torch.randn(3, 3, 8))
    with pytest.raises(ValueError, match=r"\(2, 3\)"):
        ctx.attending(torch.randn(2, 3, 8), torch.ones(2, 4, dtype=torch.bool))
