"""Targets: which are met, against which peers, and the message if nothing was measured."""

import pytest

from addnorm.bench.benchmark import Goal, Limit, Outcome, Ratio, Spread, ratio
from addnorm.bench.implementation import Round


def outcome(name: str, *speeds: float) -> Outcome:
    return Outcome(name=name, rounds=[Round(1.0, speed, {"peak": 100.0}) for speed in speeds])


OUTCOMES = {
    one.name: one
    for one in (
        outcome("ours", 6.0, 6.0, 6.0),
        outcome("ours, compiled", 8.0, 9.0, 10.0),
        outcome("slow", 1.0, 1.0, 1.0),
        outcome("fast", 4.0, 3.0, 5.0),
        Outcome(name="absent", problem="not installed"),
    )
}


@pytest.mark.parametrize(
    ("value", "goal", "met"),
    [
        (1.6, Goal(must=1.2, aim=1.5), "aim"),
        (1.2, Goal(must=1.2, aim=1.5), "must"),
        (1.1, Goal(must=1.2, aim=1.5), "not met"),
        (0.9, Goal(aim=0.85), "aim"),
        (0.8, Goal(aim=0.85), "not met"),
        (1.1, Goal(must=1.1, at_most=True), "must"),
        (1.2, Goal(must=1.1, at_most=True), "not met"),
    ],
)
def test_marks(value: float, goal: Goal, met: str) -> None:
    assert goal.met(value) == met


def test_the_best_of_ours_against_the_best_of_them() -> None:
    target = Ratio(
        ours=("ours", "ours, compiled"), peers=("slow", "fast", "absent"), goal=Goal(must=1.2)
    )
    target_result = target.evaluate(OUTCOMES)
    assert target_result.comparison == "ours, compiled : fast"
    assert target_result.value == Spread(median=2.0, low=2.0, high=3.0)
    assert target_result.met == "must"


def test_where_less_is_better_the_best_is_the_least() -> None:
    goal = Goal(must=0.5, at_most=True)
    target_result = Ratio(ours=("ours",), peers=("slow", "fast"), figure="ms", goal=goal)
    assert target_result.evaluate(OUTCOMES).comparison == "ours : fast, ms"
    assert target_result.evaluate(OUTCOMES).met == "not met"


def test_a_limit() -> None:
    target = Limit(ours=("ours",), figure="peak", goal=Goal(must=100.0, at_most=True))
    assert target.evaluate(OUTCOMES).comparison == "ours, peak"
    assert target.evaluate(OUTCOMES).met == "must"


@pytest.mark.parametrize(
    ("target", "missing"),
    [
        (Ratio(ours=("ours",), peers=("absent",), goal=Goal(must=1.0)), "absent"),
        (Ratio(ours=("absent", "nobody"), peers=("fast",), goal=Goal()), "absent or nobody"),
        (Limit(ours=("ours",), figure="fraction", goal=Goal(aim=0.8)), "ours"),
    ],
)
def test_missing_figures_are_reported(target: Ratio | Limit, missing: str) -> None:
    target_result = target.evaluate(OUTCOMES)
    assert (target_result.value, target_result.met) == (None, "not measured")
    assert target_result.comparison == f"no figures of {missing}"


def test_figures() -> None:
    outcome = Outcome(name="a", rounds=[Round(2.0, 10.0, {"x": 3.0}), Round(4.0, 10.0)])
    assert outcome.figures("speed") == [5.0, 2.5]
    assert outcome.figures("ms") == [200.0, 400.0]
    assert outcome.figures("x") == [3.0]
    assert outcome.figures("y") == []


def test_a_ratio_pairs_what_was_measured_together() -> None:
    """The machine is twice as slow in the second round, and the ratio does not see it."""
    assert ratio([8.0, 4.0, 9.0], [4.0, 2.0, 3.0]) == Spread(median=2.0, low=2.0, high=3.0)
    assert Spread.of([3.0, 1.0]) == Spread(median=2.0, low=1.0, high=3.0)
    with pytest.raises(ValueError, match="no rounds"):
        Spread.of([])
