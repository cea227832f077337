"""Metrics against hand-computed values and reference libraries."""

import math
import sys
from collections import Counter
from itertools import pairwise

import pytest
import sacrebleu
import seqeval.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from addnorm.errors import InputError
from addnorm.metrics import scores as metrics
from addnorm.metrics.scores import lead, rouge_scores, summary_scores
from addnorm.tasks.eval_config import EvalConfig


def test_perplexity_and_bits() -> None:
    assert metrics.perplexity(math.log(8)) == pytest.approx(8)
    assert math.isfinite(metrics.perplexity(1e6))
    # 10 characters, each one of 4 equally likely: 2 bits each.
    assert metrics.bits_per_character(10 * math.log(4), 10) == pytest.approx(2)
    assert metrics.bits_per_character(0.0, 0) == 0


def test_bleu_of_a_worked_example() -> None:
    # Precisions 5/6, 3/5, 1/4 and 1/6 (for a count of 0, 1/2 is taken); nothing is too short.
    scores = metrics.translation_scores(
        ["the cat sat on a mat"], ["the cat sat in a mat"], tokenize="none"
    )
    assert scores["bleu"] == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 0.5 / 3) ** 0.25)
    assert scores["exact"] == 0


def test_tokenised_text_is_warned_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    metrics._warn_of_tokens.cache_clear()  # pyright: ignore[reportPrivateUsage]
    texts = ["a red cat ."] * 100
    for tokenize, told in (("none", 0), ("13a", 1), ("13a", 0), ("intl", 0)):
        metrics.translation_scores(texts, texts, tokenize)
        err = capsys.readouterr().err
        assert err.count("eval.bleu_tokenize") == told
        assert err.count("\n") == told


def test_translation_scores_are_those_of_sacrebleu() -> None:
    said = ["Ein Hund läuft.", "Zwei Katzen, ein Hund", "genau so"]
    gold = ["Ein Hund rennt.", "Zwei Katzen und ein Hund", "genau so"]
    scores = metrics.translation_scores(said, gold, tokenize="13a")
    assert scores["bleu"] == sacrebleu.corpus_bleu(said, [gold]).score
    assert scores["chrf"] == sacrebleu.corpus_chrf(said, [gold]).score
    assert scores["exact"] == pytest.approx(100 / 3)
    assert metrics.translation_scores(gold, gold, "none")["bleu"] == pytest.approx(100)


def test_accuracy_and_macro_f1_by_hand() -> None:
    gold, said = list("aaab"), list("aabb")
    assert metrics.accuracy(said, gold) == 75
    # a: 2 hits, 1 missed: 4/5; b: 1 hit, 1 false: 2/3.
    assert metrics.macro_f1(said, gold) == pytest.approx(100 * (4 / 5 + 2 / 3) / 2)
    assert metrics.macro_f1(list("cc"), list("ab")) == 0
    assert metrics.accuracy([], []) == metrics.macro_f1([], []) == 0


def test_scores_of_several_labels_by_hand() -> None:
    gold, said = [{"a", "b"}, {"a"}, set[str]()], [{"a"}, {"a", "b"}, set[str]()]
    scores = metrics.label_scores(said, gold, ["a", "b", "c"])
    # a: 2 hits, no miss; b: no hit, 2 misses; c is nowhere.
    assert scores["f1_micro"] == pytest.approx(100 * 4 / 6)
    assert scores["f1_macro"] == pytest.approx(50)
    assert scores["exact"] == pytest.approx(100 / 3)
    nothing = {"f1_micro": 100.0, "f1_macro": 100.0, "exact": 100.0}
    assert metrics.label_scores([()], [()], ["a"]) == nothing


def test_scores_of_numbers_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    gold, said = [[1.0], [2.0], [2.0], [5.0], [-3.0]], [[0.5], [0.1], [3.0], [3.0], [-9.0]]
    scores = metrics.number_scores(said, gold)
    columns = [[row[0] for row in side] for side in (said, gold)]
    assert scores["pearson"] == pytest.approx(stats.pearsonr(*columns).statistic)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(*columns).statistic)
    assert scores["mse"] == pytest.approx((0.25 + 1.9**2 + 1 + 4 + 36) / 5)
    same = metrics.number_scores([[1.0, 1.0]] * 3, [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]])
    assert (same["pearson"], same["spearman"]) == (0.0, 0.0)
    two = [[a, -b] for [a], [b] in zip(said, gold, strict=True)]
    both = metrics.number_scores(two, [[a, b] for [a], [b] in zip(said, gold, strict=True)])
    assert both["pearson"] == pytest.approx((1 - 1) / 2, abs=1e-6)


def test_numbers_are_scored_in_float64() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    gold, said = [1e9 + 0.125, 1e9 + 7.25, 1e9 + 3], [1e9 + 1.5, 1e9 + 6, 1e9 + 4.125]
    scores = metrics.number_scores([[one] for one in said], [[one] for one in gold])
    assert scores["mse"] == pytest.approx(sklearn.mean_squared_error(gold, said))
    assert scores["r2"] == pytest.approx(sklearn.r2_score(gold, said))


def test_constants_whose_mean_is_rounded_count_as_constants() -> None:
    constant, changing = [[0.1]] * 3, [[1.0], [2.0], [4.0]]
    for said, gold in ((constant, changing), (changing, constant)):
        scores = metrics.number_scores(said, gold)
        assert (scores["pearson"], scores["spearman"]) == (0, 0)
    assert scores["r2"] == 0


def test_entities_count_as_wholes() -> None:
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-PER"]]
    said = [["B-PER", "O", "O", "B-LOC"], ["B-PER", "B-PER"]]
    # Three entities there, four said, two of them right.
    scores = metrics.entity_scores(said, gold)
    assert scores["precision"] == pytest.approx(50)
    assert scores["recall"] == pytest.approx(200 / 3)
    assert scores["f1"] == pytest.approx(400 / 7)
    assert metrics.entity_scores([["O"]], [["O"]]) == {"f1": 0, "precision": 0, "recall": 0}


def test_surface_forms_count_once() -> None:
    words = [["Ann", "saw", "New", "York"], ["Ann", "likes", "York"], ["ann", "in", "Bonn"]]
    gold = [["B-PER", "O", "B-LOC", "I-LOC"], ["B-PER", "O", "B-LOC"], ["B-PER", "O", "B-LOC"]]
    said = [["B-PER", "O", "B-LOC", "O"], ["B-PER", "O", "B-PER"], ["O", "O", "B-LOC"]]
    # There: Ann, New York, York, ann, Bonn. Said: Ann, New, York as a person, Bonn. Right: two.
    assert metrics.surface_forms(gold, words) == {
        ("PER", ("Ann",)),
        ("LOC", ("New", "York")),
        ("LOC", ("York",)),
        ("PER", ("ann",)),
        ("LOC", ("Bonn",)),
    }
    assert metrics.surface_scores(said, gold, words) == {
        "surface_f1": pytest.approx(400 / 9),
        "surface_precision": pytest.approx(50),
        "surface_recall": pytest.approx(40),
    }
    assert set(metrics.surface_scores([["O"]], [["O"]], [["a"]]).values()) == {0}


TAGS = st.sampled_from(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])


@given(st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=6), min_size=1, max_size=4))
def test_entity_scores_are_those_of_seqeval(rows: list[list[tuple[str, str]]]) -> None:
    said, gold = ([[pair[i] for pair in row] for row in rows] for i in (0, 1))
    assert metrics.entity_scores(said, gold) == {
        "f1": pytest.approx(100 * seqeval.metrics.f1_score(gold, said, zero_division=0)),
        "precision": pytest.approx(
            100 * seqeval.metrics.precision_score(gold, said, zero_division=0)
        ),
        "recall": pytest.approx(100 * seqeval.metrics.recall_score(gold, said, zero_division=0)),
    }


@given(st.lists(st.lists(st.tuples(st.sampled_from("abc"), TAGS, TAGS), min_size=1), min_size=1))
def test_surface_scores_are_those_of_a_plain_count(rows: list[list[tuple[str, str, str]]]) -> None:
    """By a reader of its own: an entity goes on while I- has its type, else one begins."""

    def forms(column: int) -> set[str]:
        found: set[str] = set()
        for row in rows:
            open_form = ""
            for cells in [*row, ("", "O", "O")]:
                mark, _, kind = cells[column].partition("-")
                goes_on = mark == "I" and open_form.startswith(kind + ":")
                if open_form and not goes_on:
                    found.add(open_form)
                    open_form = ""
                if kind:
                    open_form = open_form + " " + cells[0] if goes_on else f"{kind}: {cells[0]}"
        return found

    words, said, gold = ([[cells[i] for cells in row] for row in rows] for i in range(3))
    scores = metrics.surface_scores(said, gold, words)
    ours, theirs = forms(1), forms(2)
    precision = len(ours & theirs) / len(ours) if ours else 0
    recall = len(ours & theirs) / len(theirs) if theirs else 0
    total = precision + recall
    assert scores == {
        "surface_f1": pytest.approx(200 * precision * recall / total if total else 0),
        "surface_precision": pytest.approx(100 * precision),
        "surface_recall": pytest.approx(100 * recall),
    }


def test_a_missing_seqeval_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seqeval.metrics.sequence_labeling", None)
    with pytest.raises(InputError, match=r"addnorm\[tagging\]"):
        metrics.entity_scores([["O"]], [["O"]])


def test_error_rates_count_words_and_characters() -> None:
    assert metrics.transcription_scores(["a b c"], ["a b c"]) == {"wer": 0, "cer": 0}
    # One word of three replaced, one of two lost, one too many beside one.
    found = metrics.transcription_scores(
        ["one too tree", "five", "six six"], ["one two tree", "four five", "six"]
    )
    assert found["wer"] == pytest.approx(100 * 3 / 6)
    # 1 of 12 characters replaced; "four " lost of 9; " six" added to 3.
    assert found["cer"] == pytest.approx(100 * (1 + 5 + 4) / (12 + 9 + 3))
    assert metrics.transcription_scores([""], ["a b"]) == {"wer": 100, "cer": 100}


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


def test_the_lead_sentence_is_scored_too() -> None:
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
    with pytest.raises(InputError, match="metric = "):
        TypeAdapter(EvalConfig).validate_python(table).check_written()


def test_a_script_that_rouge_does_not_read_is_refused() -> None:
    """It would count 0 whatever was written; among others that it reads, such a text counts 0."""
    with pytest.raises(InputError, match="no reference has one, such as '\u4e2d\u6587"):
        rouge_scores(["\u4e2d\u6587"], [["\u4e2d\u6587 \u6458\u8981"]])
    scores = rouge_scores(["\u4e2d\u6587", "a cat"], [["\u4e2d\u6587"], ["a cat"]])
    assert scores["rouge1"] == pytest.approx(50)
    assert rouge_scores([], []) == {"rouge1": 0, "rouge2": 0, "rougeL": 0}
