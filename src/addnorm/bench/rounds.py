"""Running implementations in alternating rounds; medians, spreads and ratios."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol, runtime_checkable

from addnorm.bench.implementation import Failed, Round


@runtime_checkable
class Runner(Protocol):
    """An object that runs rounds; raises `Failed`."""

    def round(self) -> Round: ...


@dataclass(kw_only=True)
class Outcome:
    """The outcome of an implementation: its rounds, or the problem that occurred."""

    name: str
    rounds: list[Round] = field(default_factory=list[Round])
    problem: str = ""

    def figures(self, name: str) -> list[float]:
        """A metric of each round: `speed` in units per second, `ms` per unit, or a detail."""
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
            raise ValueError("no rounds, no median")
        return cls(median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """`ours / theirs` round by round, so that temporary slowdowns affect both."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


def alternate(
    runners: Mapping[str, Runner],
    rounds: int,
    *,
    pause: float = 0.0,
    watch: Callable[[int, str], object] = lambda _, __: None,
) -> dict[str, Outcome]:
    """Run `rounds` rounds of each runner in alternation, starting with a different one each time.

    A runner that fails is dropped, with its earlier rounds. The pause of `pause` seconds before
    each turn lets the threads of the previous runner go to sleep.
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
