"""The definition of a benchmark: its implementations, their outcomes, and targets to meet."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal

from addnorm.bench.implementation import Implementation, Round, Run

Met = Literal["aim", "must", "not met", "not measured"]


@dataclass(kw_only=True)
class Outcome:
    """The outcome of an implementation: its rounds, or the problem that occurred."""

    name: str
    rounds: list[Round] = field(default_factory=list[Round])
    problem: str = ""

    def figures(self, name: str) -> list[float]:
        """Return a metric of each round: `speed` (units per second), `ms` per unit, or a detail."""
        if name == "speed":
            return [r.units / r.seconds for r in self.rounds]
        if name == "ms":
            return [1e3 * r.seconds / r.units for r in self.rounds]
        return [r.details[name] for r in self.rounds if name in r.details]


@dataclass(frozen=True)
class Spread:
    """The median, minimum and maximum of several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Compute the spread. Raises `ValueError` if there are no values."""
        if not values:
            raise ValueError("no rounds, so there is no median")
        return cls(median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Return `ours / theirs` round by round, so that temporary slowdowns affect both."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


Outcomes = Mapping[str, Outcome]


@dataclass(frozen=True, kw_only=True)
class Goal:
    """A minimum target `must` and a more ambitious `aim`; with `at_most`, lower is better."""

    must: float | None = None
    aim: float | None = None
    at_most: bool = False

    def met(self, value: float) -> Met:
        """Return which of the two targets a value meets, if any."""
        if self.aim is not None and self._reaches(value, self.aim):
            return "aim"
        if self.must is not None and self._reaches(value, self.must):
            return "must"
        return "not met"

    def _reaches(self, value: float, mark: float) -> bool:
        return value <= mark if self.at_most else value >= mark


@dataclass(frozen=True, kw_only=True)
class TargetResult:
    """A target's measured value; `comparison` names the implementations, or missing ones."""

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
        ours = best_of(outcomes, self.ours, self.figure, least=self.goal.at_most)
        peer = best_of(outcomes, self.peers, self.figure, least=self.goal.at_most)
        if ours is None or peer is None:
            return _unmeasured(self.ours if ours is None else self.peers)
        value = ratio(ours.figures(self.figure), peer.figures(self.figure))
        unit = "" if self.figure == "speed" else f", {self.figure}"
        comparison = f"{ours.name} : {peer.name}{unit}"
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
    """The outcome with the best median among `names`; None if none was measured."""
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
    """One benchmark; `figure` is its table's metric (see `Outcome.figures`), in `unit`.

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
