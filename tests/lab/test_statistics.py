"""Statistics against scipy's own functions, tables and simulation; models that barely learnt."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from addnorm.lab.statistics import (
    barely_learnt,
    bootstrap_interval,
    differences,
    effect_size,
    holm,
    mean_interval,
    percentage_interval,
    power_of,
    seeds_to_decide,
    with_reach,
)

numbers = st.integers(-(10**6), 10**6).map(lambda n: n / 1000)


@given(st.lists(numbers, min_size=2, max_size=9, unique=True))
def test_an_interval_is_that_of_students_t(values: list[float]) -> None:
    found = mean_interval(values)
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values)
    )
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9, abs=1e-9)


percentages = st.lists(st.floats(0, 100), min_size=2, max_size=9)


@given(percentages)
def test_an_interval_of_percentages_is_within_0_and_100_and_holds_their_mean(
    values: list[float],
) -> None:
    found = percentage_interval(values)
    assert 0 <= found.low <= found.mean + 1e-9
    assert found.mean - 1e-9 <= found.high <= 100
    mirrored = percentage_interval([100 - value for value in values])
    assert (100 - mirrored.high, 100 - mirrored.low) == pytest.approx((found.low, found.high))


def test_far_from_the_ends_it_is_nearly_students_interval() -> None:
    values = [50.1, 49.8, 50.3, 49.9]
    ours, plain = percentage_interval(values), mean_interval(values)
    assert (ours.low, ours.high) == pytest.approx((plain.low, plain.high), abs=1e-4)
    assert with_reach(plain) == "50.025 ± 0.35"
    assert with_reach(percentage_interval([99.0, 97.0, 100.0])) == "98.667 (90.78 … 100)"
    assert percentage_interval([50.0]).high == math.inf


def test_differences_of_percentages_end_at_100() -> None:
    pair = ([100.0, 60.0], [0.0, 10.0])
    [found], [free] = differences([pair], largest=100.0), differences([pair])
    assert (found.interval.mean, found.interval.high) == (75.0, 100.0)
    assert free.interval.high > 100
    assert (found.p, found.verdict) == (free.p, free.verdict)


def test_mean_interval_of_one_value_is_infinite_and_rejects_none() -> None:
    found = mean_interval([2.0])
    assert (found.mean, found.low, found.high) == (2.0, -math.inf, math.inf)
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


def test_holm_is_that_of_the_paper() -> None:
    """The step-down procedure by hand: reject while p is at most 0.05 / (m - rank)."""
    ps = [0.01, 0.04, 0.03, 0.005]
    assert holm(ps) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.9, 0.8]) == [1.0, 1.0]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_rejects_what_the_step_down_procedure_rejects(ps: list[float]) -> None:
    adjusted = holm(ps)
    rejected, order = set(), sorted(range(len(ps)), key=lambda i: ps[i])
    for rank, index in enumerate(order):
        if ps[index] * (len(ps) - rank) > 0.05:
            break
        rejected.add(index)
    assert {i for i, p in enumerate(adjusted) if p <= 0.05} == rejected
    assert all(a >= p for a, p in zip(adjusted, ps, strict=True))


@pytest.mark.parametrize(("effect", "n"), [(0.5, 34), (0.8, 15), (0.2, 199), (1.2, 8)])
def test_the_power_is_that_of_the_tables(effect: float, n: int) -> None:
    """Paired t-test, two-sided 5 %, power 0.8, as G*Power and Cohen's tables have it."""
    assert power_of(effect, n) >= 0.8 > power_of(effect, n - 1)
    values = np.array([-1.0, 0.0, 1.0]) + effect  # standard deviation one
    assert seeds_to_decide(list(values)) == n


@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_the_power_of_a_large_effect_is_a_number(n: int) -> None:
    powers = [power_of(effect, n) for effect in np.linspace(0, 30, 500)]
    assert np.all(np.isfinite(powers))
    assert np.all(np.diff(powers) >= -1e-9)
    assert power_of(-3.0, n) == pytest.approx(power_of(3.0, n))


def test_what_no_number_of_seeds_decides() -> None:
    assert seeds_to_decide([0.0, 0.0, 0.0]) is None
    assert seeds_to_decide([1.0]) is None
    assert seeds_to_decide([1.0, 1.0]) is None  # decided already
    assert seeds_to_decide([-100.0, 100.001]) is None
    few = seeds_to_decide([0.5, 1.5, 1.0], n_tests=1)
    more = seeds_to_decide([0.5, 1.5, 1.0], n_tests=10)
    assert few is not None
    assert more is not None
    assert few < more


def test_the_power_that_is_promised_is_had() -> None:
    rng = np.random.default_rng(5)
    n = seeds_to_decide([0.2, 1.2, 0.7, 1.9])
    assert n is not None
    effect = effect_size([0.2, 1.2, 0.7, 1.9])
    samples = rng.normal(effect, 1.0, size=(2000, n))
    found = np.mean([stats.ttest_1samp(one, 0).pvalue < 0.05 for one in samples])
    assert 0.78 < found < 0.9


@pytest.fixture
def without_needed_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many seeds would decide is not asked here, and takes nine tenths of the time."""
    monkeypatch.setattr("addnorm.lab.statistics.seeds_to_decide", lambda *_: None)


@pytest.mark.long
@pytest.mark.usefixtures("without_needed_seeds")
@pytest.mark.parametrize("n_variants", [1, 3])
def test_false_alarms_are_at_most_six_in_a_hundred(n_variants: int) -> None:
    """Studies of variants that do not differ: any verdict in any comparison is a false alarm."""
    rng = np.random.default_rng(11)
    alarms = 0
    for _ in range(400):
        first = rng.normal(size=5)
        pairs = [(list(rng.normal(size=5)), list(first)) for _ in range(n_variants)]
        alarms += any(one.verdict != "undecided" for one in differences(pairs))
    assert alarms / 400 <= 0.06


def test_verdicts() -> None:
    higher, lower, equal, open_, single = differences(
        [
            ([2.0, 2.1, 2.05, 1.95, 2.02], [1.0, 1.0, 1.0, 1.0, 1.0]),
            ([0.0, 0.1, 0.05, -0.05, 0.02], [1.0, 1.0, 1.0, 1.0, 1.0]),
            ([1.0, 2.0], [1.0, 2.0]),
            ([1.0, 2.0, 3.0], [1.1, 1.9, 3.2]),
            ([1.0], [2.0]),
        ]
    )
    assert [one.verdict for one in (higher, lower, equal, open_, single)] == [
        "higher",
        "lower",
        "equal",
        "undecided",
        "undecided",
    ]
    assert higher.needed is None
    assert open_.needed is not None
    assert single.interval.low == -math.inf
    assert single.p == 1.0
    assert math.isnan(single.effect)


def test_sides_of_different_lengths_are_not_paired() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer|argument"):
        differences([([1.0], [1.0, 2.0])])


def test_the_bootstrap_covers_the_true_difference() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for index in range(100):
        first = rng.normal(size=80)
        ours = first + rng.normal(0.1, 0.5, size=80)
        found = bootstrap_interval(ours, first, resamples=300, seed=index)
        hits += found.low <= 0.1 <= found.high
    assert hits >= 88


def test_the_bootstrap_weighs_and_repeats_itself() -> None:
    ours, first = np.array([1.0, 2.0, 5.0]), np.array([0.0, 0.0, 0.0])
    weights = np.array([1.0, 1.0, 2.0])
    found = bootstrap_interval(ours, first, weights)
    assert found.mean == pytest.approx(13 / 4)
    assert found == bootstrap_interval(ours, first, weights)
    assert 1.0 <= found.low < found.mean < found.high <= 5.0
    assert bootstrap_interval(ours[:1], first[:1]).high == math.inf
    for wrong in (np.array([1.0]), np.array([])):
        with pytest.raises(ValueError, match="cannot be paired"):
            bootstrap_interval(wrong, first[:0] if not wrong.size else first)


def test_a_nan_score_does_not_hide_others() -> None:
    good = ([1.0, 1.1, 1.2, 1.15], [0.0, 0.0, 0.0, 0.0])
    found = differences([good, ([math.nan, 1.0, 1.0, 1.0], [0.0] * 4)])
    assert [one.verdict for one in found] == ["higher", "undecided"]


def test_equal_differences_of_few_seeds_keep_an_interval() -> None:
    """Of scores with a resolution they vary by one step at least; of others there are signs."""
    [two] = differences([([2.0, 3.0], [1.0, 2.0])])
    assert (two.p, two.verdict) == (0.5, "undecided")
    [six] = differences([([2.0] * 6, [1.0] * 6)])
    assert six.p == pytest.approx(2**-5)
    [step] = differences([([95.0] * 3, [90.0] * 3)], resolution=5.0)
    assert step.p == pytest.approx(2 * stats.t.sf(math.sqrt(3), 2))
    assert step.verdict == "undecided"
    assert step.interval.low < 0 < step.interval.high
    [far] = differences([([100.0] * 3, [0.0] * 3)], resolution=5.0)
    assert far.verdict == "higher"


@pytest.mark.long
@pytest.mark.usefixtures("without_needed_seeds")
@pytest.mark.parametrize(("n_examples", "accuracy", "n_seeds"), [(20, 0.9, 2), (100, 0.99, 3)])
def test_false_alarms_are_few_for_scores_that_count(
    n_examples: int, accuracy: float, n_seeds: int
) -> None:
    """Four comparisons without a true difference; a study errs if any of them is decided."""
    rng = np.random.default_rng(0)
    step, alarms, n = 100 / n_examples, 0, 1500
    for _ in range(n):
        scores = step * rng.binomial(n_examples, accuracy, (5, n_seeds))
        found = differences([(list(one), list(scores[0])) for one in scores[1:]], resolution=step)
        alarms += any(one.verdict in ("higher", "lower") for one in found)
    assert alarms <= 0.06 * n


def test_tests_that_are_not_shown_count() -> None:
    pair = ([1.0, 2.1, 3.0, 4.2], [0.5, 1.0, 2.2, 3.1])
    [alone], [among] = differences([pair]), differences([pair], others=3)
    assert among.p == alone.p == alone.adjusted
    assert among.adjusted == pytest.approx(4 * alone.p)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([4.0, 3.9, 3.8, 3.7], (4.0, 3.7)),
        ([4.0] * 10 + [3.0] * 10, None),
        ([4.0, 3.7, 3.9] * 10, (4.0, pytest.approx((4.0 + 3.7 + 3.9) / 3))),  # the last tenth
        ([4.0, 5.0], (4.0, 5.0)),
        ([4.0], None),
        ([], None),
        ([-1.0, -1.0], None),
    ],
)
def test_the_fall_of_the_loss_decides(
    tmp_path: Path, losses: list[float], expected: tuple[float, float] | None
) -> None:
    lines = [{"step": n, "loss": loss} for n, loss in enumerate(losses, 1)]
    lines.append({"step": len(losses), "valid_loss": 1.0})
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert barely_learnt(tmp_path) == expected
