"""Time stamps: the tokens that may follow, as transformers has them, and the segments."""

from math import inf
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from addnorm.generate.rules import Rules, RulesConfig
from addnorm.generate.timestamps import NOTHING, Span, TimestampRules, spans_of

VOCAB, END, FIRST = 20, 7, 12
RULES = TimestampRules(FIRST, END)
tokens = st.integers(0, END - 1) | st.integers(FIRST, VOCAB - 1)


def stamps_in_order(row: list[int]) -> list[int]:
    """The row with its stamps sorted, as the rules have them."""
    stamps = iter(sorted(token for token in row if token >= FIRST))
    return [next(stamps) if token >= FIRST else token for token in row]


histories = st.integers(0, 6).flatmap(
    lambda n: st.lists(
        st.lists(tokens, min_size=n, max_size=n).map(stamps_in_order), min_size=1, max_size=4
    )
)


@given(histories, st.none() | st.integers(0, 5), st.integers(0, 9))
def test_scores_are_those_of_transformers(
    rows: list[list[int]], latest_start: int | None, seed: int
) -> None:
    logits: Any = pytest.importorskip("transformers.generation.logits_process")
    config = SimpleNamespace(
        no_timestamps_token_id=FIRST - 1,
        eos_token_id=END,
        bos_token_id=None,
        max_initial_timestamp_index=latest_start,
    )
    scores = 3 * torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed))
    written = torch.tensor(rows, dtype=torch.long).view(len(rows), -1)
    theirs = logits.WhisperTimeStampLogitsProcessor(config, begin_index=0)
    expected = theirs(written, scores)
    assert torch.equal(TimestampRules(FIRST, END, latest_start).apply(scores, written), expected)


@given(histories, st.integers(0, 9))
def test_padding_on_the_left_changes_nothing(rows: list[list[int]], seed: int) -> None:
    scores = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(seed))
    written = torch.tensor(rows, dtype=torch.long).view(len(rows), -1)
    padded = torch.nn.functional.pad(written, (3, 0), value=NOTHING)
    assert torch.equal(RULES.apply(scores, padded), RULES.apply(scores, written))


@given(st.integers(0, 99), st.integers(1, 30))
def test_a_text_by_the_rules_is_stamped_in_pairs(seed: int, length: int) -> None:
    """Whatever the model's logits are, stamps enclose segments and never decrease."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = []
    while len(ids) < length:
        scores = RULES.apply(
            torch.randn(1, VOCAB, generator=generator), torch.tensor([ids], dtype=torch.long)
        )
        best = int(scores[0].argmax())
        if scores[0, best] == -inf or best == END:
            break
        ids.append(best)
    stamps = [token for token in ids if token >= FIRST]
    assert stamps == sorted(stamps)
    assert ids[0] >= FIRST
    spans, after = spans_of(ids, RULES, 40)
    assert all(span.start <= span.end for span in spans)
    assert after is None or after == max(1, spans[-1].end)


@pytest.mark.parametrize(
    ("ids", "spans", "after"),
    [
        ([12, 1, 2, 15], [Span(0, 3, [1, 2])], None),
        ([12, 1, 14, 14, 2, 16], [Span(0, 2, [1]), Span(2, 4, [2])], None),
        # The second segment is cut by the end of the window, and read again in the next one.
        ([12, 1, 14, 14, 2], [Span(0, 2, [1])], 2),
        ([13, 1, 14, 15], [Span(1, 2, [1])], 2),
        ([12, 1, 14, 15, 2, 16, 17], [Span(0, 2, [1]), Span(3, 4, [2])], 4),
        ([12, 1, 2], [Span(0, 9, [1, 2])], None),
        ([12], [Span(0, 9, [])], None),
        ([], [Span(0, 9, [])], None),
    ],
)
def test_segments_of_a_window(ids: list[int], spans: list[Span], after: int | None) -> None:
    assert spans_of(ids, RULES, 9) == (spans, after)


def test_the_rules_of_a_text_hold_its_time_stamps() -> None:
    """Also where nothing else is ruled; without either there are no rules."""
    rules = Rules.over(RulesConfig(), [[1, 2]], [5], [END], RULES)
    assert rules is not None
    assert rules.stamps == RULES
    assert Rules.over(RulesConfig(), [[1, 2]], [5], [END]) is None
