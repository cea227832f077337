"""Rounds: implementations in turn, and the medians, spreads and ratios of what they did."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol, runtime_checkable

from addnorm.bench.implementation import Failed, Round


@runtime_checkable
class Runner(Protocol):
    """What does a round when asked; raises `Failed`."""

    def round(self) -> Round: ...


@dataclass(kw_only=True)
class Outcome:
    """What became of an implementation: a round for each turn, or the problem that it had."""

    name: str
    rounds: list[Round] = field(default_factory=list[Round])
    problem: str = ""

    def figures(self, name: str) -> list[float]:
        """A figure of each round: `speed` in units per second, `ms` per unit, or a detail."""
        if name == "speed":
            return [r.units / r.seconds for r in self.rounds]
        if name == "ms":
            return [1e3 * r.seconds / r.units for r in self.rounds]
        return [r.details[name] for r in self.rounds if name in r.details]


@dataclass(frozen=True)
class Spread:
    """The median of several rounds with the least and the most."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Raises `ValueError` where there are none."""
        if not values:
            raise ValueError("no rounds, no median")
        return cls(median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """`ours / theirs` in each round: what slows the machine for a while slows both."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


def alternate(
    runners: Mapping[str, Runner],
    rounds: int,
    *,
    pause: float = 0.0,
    watch: Callable[[int, str], object] = lambda _, __: None,
) -> dict[str, Outcome]:
    """`rounds` rounds of each in strict alternation, one at a time; each round begins one further.

    One that fails is out from then on, and its earlier rounds count for nothing. `pause` seconds
    before each turn let the threads of the one before it fall asleep.
    """
    outcomes = {name: Outcome(name=name) for name in runners}
    for number in range(rounds):
        names = list(runners)
        first = number % len(names) if names else 0
        for name in names[first:] + names[:first]:
            outcome = outcomes[name]
            if outcome.problem:
                continue
            watch(number, name)
            time.sleep(pause)
            try:
                outcome.rounds.append(runners[name].round())
            except Failed as error:
                outcome.problem, outcome.rounds = str(error), []
    return outcomes
