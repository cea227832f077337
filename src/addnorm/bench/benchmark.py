"""The definition of a benchmark: the measurement, the implementations, and targets to meet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from addnorm.bench.implementation import Implementation, Run
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
class Ratio:
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
        unit = "" if self.figure == "speed" else f", {self.figure}"
        comparison = f"{mine.name} : {other.name}{unit}"
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


Target = Ratio | Limit
"""Any kind of target."""


def best_of(
    outcomes: Outcomes, names: tuple[str, ...], figure: str, *, least: bool
) -> Outcome | None:
    """The outcome among `names` with the best median; None if none was measured."""
    measured = [outcomes[name] for name in names if name in outcomes]
    measured = [outcome for outcome in measured if outcome.figures(figure)]
    if not measured:
        return None
    return (min if least else max)(measured, key=lambda o: Spread.of(o.figures(figure)).median)


def _unmeasured(names: tuple[str, ...]) -> TargetResult:
    return TargetResult(
        comparison=f"no figures of {' or '.join(names)}", value=None, met="not measured"
    )


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark; `figure` is the metric in its table (see `Outcome.figures`), in `unit`.

    `prepare` writes data that the implementations share, such as weights, to a common folder.
    """

    name: str
    description: str
    unit: str
    implementations: tuple[Implementation, ...]
    targets: tuple[Target, ...] = ()
    figure: str = "speed"
    details: tuple[str, ...] = ()
    prepare: Callable[[Path], Run] | None = None
