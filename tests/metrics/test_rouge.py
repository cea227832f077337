"""ROUGE by hand, by plain counts and subsequences, and with several references."""

import sys
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from addnorm.errors import InputError
from addnorm.metrics.rouge import lead, rouge_scores, summary_scores
from addnorm.tasks.eval_config import EvalConfig

pytest.importorskip("rouge_score", exc_type=ImportError)

WORDS = st.lists(st.sampled_from(["cat", "dog", "sun", "map", "red"]), min_size=1, max_size=8)


def f1(common: int, ours: int, theirs: int) -> float:
    return 0.0 if not common else 100 * 2 * common / (ours + theirs)


def longest_common_subsequence(a: list[str], b: list[str]) -> int:
    if not a or not b:
        return 0
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, x in enumerate(a):
        for j, y in enumerate(b):
            longer = max(table[i][j + 1], table[i + 1][j])
            table[i + 1][j + 1] = table[i][j] + 1 if x == y else longer
    return table[-1][-1]


@given(WORDS, WORDS)
@settings(max_examples=50, deadline=None)
def test_each_measure_by_its_definition(ours: list[str], theirs: list[str]) -> None:
    found = rouge_scores([" ".join(ours)], [[" ".join(theirs)]])
    for name, a, b in (
        ("rouge1", ours, theirs),
        ("rouge2", list(pairwise(ours)), list(pairwise(theirs))),
    ):
        common = (Counter(a) & Counter(b)).total()
        assert found[name] == pytest.approx(f1(common, len(a), len(b)))
    common = longest_common_subsequence(ours, theirs)
    assert found["rougeL"] == pytest.approx(f1(common, len(ours), len(theirs)))


def test_a_case_by_hand() -> None:
    """Lin 2004, §3: of four words three are common, in order, and one pair."""
    found = rouge_scores(["police kill the gunman"], [["police killed the gunman today"]])
    assert found["rouge1"] == pytest.approx(100 * 8 / 9)  # by stems: all four of four, and of five
    found = rouge_scores(["police saw the gunman"], [["police killed the gunman"]])
    assert found == pytest.approx({"rouge1": 75.0, "rouge2": 100 / 3, "rougeL": 75.0})


def test_the_best_reference_counts_for_each_measure() -> None:
    references = ["red map dog", "sun cat"]
    both = rouge_scores(["cat sun"], [references])
    alone = [rouge_scores(["cat sun"], [[one]]) for one in references]
    assert both == {name: max(one[name] for one in alone) for name in both}
    assert both["rouge1"] == 100.0


def test_the_mean_is_over_summaries() -> None:
    found = rouge_scores(["cat", "dog"], [["cat"], ["sun"]])
    assert found["rouge1"] == 50.0


def test_the_lead_sentence_is_scored_beside() -> None:
    found = summary_scores(["dog"], [["The cat sat."]], ["The cat sat. It saw a dog!"])
    assert (found["rouge1"], found["lead_rouge1"]) == (0.0, 100.0)


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        (" No end", "No end"),
        ("Of 3.5 % now? Yes", "Of 3.5 % now?"),
        ("", ""),
    ],
)
def test_the_lead_ends_at_the_first_mark_before_a_space(text: str, first: str) -> None:
    assert lead(text) == first


def test_a_summary_without_reference_is_an_error() -> None:
    with pytest.raises(ValueError, match="needs a reference"):
        rouge_scores(["cat"], [[]])


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rouge_score.rouge_scorer", None)
    with pytest.raises(InputError, match=r"addnorm\[summaries\]"):
        rouge_scores(["cat"], [["cat"]])


@pytest.mark.parametrize(
    "table",
    [
        {"metric": "rouge1", "valid_examples": 5},
        {"metric": "bleu", "valid_examples": 5, "text_metrics": "summary"},
        {"metric": "rougeL", "text_metrics": "summary"},
    ],
)
def test_a_metric_that_is_not_measured_is_refused(table: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="metric = "):
        TypeAdapter(EvalConfig).validate_python(table)


def test_a_script_that_rouge_does_not_read_is_refused() -> None:
    """It would count 0 whatever was written; among others that it reads, such a text counts 0."""
    with pytest.raises(InputError, match="no reference has one, such as '\u4e2d\u6587"):
        rouge_scores(["\u4e2d\u6587"], [["\u4e2d\u6587 \u6458\u8981"]])
    scores = rouge_scores(["\u4e2d\u6587", "a cat"], [["\u4e2d\u6587"], ["a cat"]])
    assert scores["rouge1"] == pytest.approx(50)
    assert rouge_scores([], []) == {"rouge1": 0, "rouge2": 0, "rougeL": 0}
