"""Rounds alternate strictly with a rotating order, and ratios are taken per round."""

from itertools import count

import pytest

from addnorm.bench.implementation import Failed, Round
from addnorm.bench.rounds import Outcome, Spread, alternate, ratio


class Noted:
    """Notes every turn; fails from one of them on, if at all."""

    def __init__(self, name: str, turns: list[str], *, fails_at: int = 99) -> None:
        self.name, self.turns, self.fails_at, self.done = name, turns, fails_at, count()

    def round(self) -> Round:
        number = next(self.done)
        self.turns.append(self.name)
        if number >= self.fails_at:
            raise Failed("out of breath")
        return Round(seconds=1.0, units=number + 1.0)


def test_everyone_has_a_turn_in_each_round_and_the_first_one_changes() -> None:
    turns: list[str] = []
    outcomes = alternate({name: Noted(name, turns) for name in "abc"}, 4)
    assert turns == list("abcbcacababc")
    assert [r.units for r in outcomes["b"].rounds] == [1.0, 2.0, 3.0, 4.0]


def test_one_that_fails_is_out_and_the_others_go_on() -> None:
    turns: list[str] = []
    runners = {"a": Noted("a", turns), "b": Noted("b", turns, fails_at=1)}
    seen: list[tuple[int, str]] = []
    outcomes = alternate(runners, 3, watch=lambda i, name: seen.append((i, name)))
    assert turns == list("abbaa")
    assert seen == list(zip([0, 0, 1, 1, 2], turns, strict=True))
    assert (outcomes["b"].problem, outcomes["b"].rounds) == ("out of breath", [])
    assert len(outcomes["a"].rounds) == 3


def test_nobody_there_is_no_mistake() -> None:
    assert alternate({}, 3) == {}


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
