"""Benchmark targets, and whether they are met."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from addnorm.bench.rounds import Outcome, Spread, ratio

Outcomes = Mapping[str, Outcome]
Met = Literal["aim", "must", "not met", "not measured"]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A minimum target `must` and a more ambitious `aim`; with `at_most`, lower is better."""

    must: float | None = None
    aim: float | None = None
    at_most: bool = False

    def met(self, value: float) -> Met:
        """Which of the two targets a value meets."""
        if self.aim is not None and self._reaches(value, self.aim):
            return "aim"
        if self.must is not None and self._reaches(value, self.must):
            return "must"
        return "not met"

    def _reaches(self, value: float, mark: float) -> bool:
        return value <= mark if self.at_most else value >= mark


@dataclass(frozen=True, kw_only=True)
class TargetResult:
    """The measured value of a target; `comparison` names the implementations (or missing ones)."""

    comparison: str
    value: Spread | None
    met: Met


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A target for the ratio of our best implementation to the best peer, round by round."""

    ours: tuple[str, ...]
    peers: tuple[str, ...]
    goal: Goal
    figure: str = "speed"

    def evaluate(self, outcomes: Outcomes) -> TargetResult:
        mine = best_of(outcomes, self.ours, self.figure, least=self.goal.at_most)
        other = best_of(outcomes, self.peers, self.figure, least=self.goal.at_most)
        if mine is None or other is None:
            return _unmeasured(self.ours if mine is None else self.peers)
        value = ratio(mine.figures(self.figure), other.figures(self.figure))
        comparison = f"{mine.name} : {other.name}" + (
            "" if self.figure == "speed" else f", {self.figure}"
        )
        return TargetResult(comparison=comparison, value=value, met=self.goal.met(value.median))


@dataclass(frozen=True, kw_only=True)
class Limit:
    """A target for a metric of our best implementation; `fraction` is relative to the ceiling."""

    ours: tuple[str, ...]
    figure: str
    goal: Goal

    def evaluate(self, outcomes: Outcomes) -> TargetResult:
        best = best_of(outcomes, self.ours, self.figure, least=self.goal.at_most)
        if best is None:
            return _unmeasured(self.ours)
        value = Spread.of(best.figures(self.figure))
        comparison = f"{best.name}, {self.figure}"
        return TargetResult(comparison=comparison, value=value, met=self.goal.met(value.median))


Target = Beside | Limit
"""Any kind of target."""


def best_of(
    outcomes: Outcomes, names: tuple[str, ...], figure: str, *, least: bool
) -> Outcome | None:
    """The outcome among `names` with the best median; None if none was measured."""
    found = [outcomes[name] for name in names if name in outcomes]
    found = [outcome for outcome in found if outcome.figures(figure)]
    if not found:
        return None
    return (min if least else max)(found, key=lambda o: Spread.of(o.figures(figure)).median)


def _unmeasured(names: tuple[str, ...]) -> TargetResult:
    return TargetResult(
        comparison=f"no figures of {' or '.join(names)}", value=None, met="not measured"
    )
