"""A claim: its statement, what is measured, and the rule by which the figures settle it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from addnorm.lab.statistics import Interval, mean_interval

Size = Literal["quick", "full", "night"]
"""All ten in ten minutes, in about two and a half hours, or in eight, on two cores."""

SEEDS: Mapping[Size, int] = {"quick": 3, "full": 5, "night": 5}

Settings = Mapping[str, Any]
"""What a cell measures and how long it trains, as values of JSON."""

Word = Literal["supported", "refuted", "undecided"]


class Both(NamedTuple):
    """A sentence in English and in Simplified Chinese."""

    en: str
    zh: str


LOSS = Both("loss, nats", "损失（纳特）")


class Row(NamedTuple):
    """One measured number of one seed: a point of a series in a panel of the picture."""

    panel: str
    series: str
    x: float | str
    value: float


class Panel(NamedTuple):
    """A panel of the picture, and a table: the names of its axes, and which are logarithmic."""

    x: Both
    y: Both
    log_x: bool = False
    log_y: bool = False


class Finding(NamedTuple):
    """A part of the verdict, with the figures that it follows from."""

    word: Word
    text: Both


class Point(NamedTuple):
    """A point of a series, which has a value for each seed."""

    panel: str
    series: str
    x: float | str


class Results:
    """The rows of all seeds, by point."""

    def __init__(self, rows: Iterable[tuple[int, Row]]) -> None:
        self.values: dict[Point, dict[int, float]] = {}
        for seed, row in rows:
            self.values.setdefault(Point(*row[:3]), {})[seed] = row.value

    def series(self, panel: str) -> list[str]:
        """The series of a panel, in the order in which they were measured."""
        return list(dict.fromkeys(point.series for point in self.values if point.panel == panel))

    def xs(self, panel: str, series: str | None = None) -> list[float | str]:
        """The places at which a panel, or one of its series, has values; numbers ascending."""
        points = (point for point in self.values if point.panel == panel)
        xs = dict.fromkeys(point.x for point in points if series in (None, point.series))
        numbers = [x for x in xs if not isinstance(x, str)]
        return [*sorted(numbers), *(x for x in xs if isinstance(x, str))]

    def mean(self, panel: str, series: str, x: float | str) -> Interval:
        """The mean over seeds with its 95 % interval."""
        return mean_interval(list(self.values[Point(panel, series, x)].values()))

    def difference(self, ours: Point, first: Point) -> Interval:
        """The mean difference of two points, seed by seed, with its 95 % interval."""
        mine, theirs = self.values[ours], self.values[first]
        return mean_interval([mine[seed] - theirs[seed] for seed in theirs if seed in mine])

    def growth(
        self, panel: str, ours: str, first: str, x: float | str, before: float | str
    ) -> Interval:
        """How much more two series differ at `x` than `before`, with its 95 % interval."""
        points = [Point(panel, series, at) for at in (x, before) for series in (ours, first)]
        columns = [self.values[point] for point in points]
        seeds = [seed for seed in columns[0] if all(seed in column for column in columns)]
        return mean_interval(
            [(columns[0][s] - columns[1][s]) - (columns[2][s] - columns[3][s]) for s in seeds]
        )

    def ratio(self, ours: Point, first: Point) -> Interval:
        """The mean ratio of two points, seed by seed, with its 95 % interval."""
        mine, theirs = self.values[ours], self.values[first]
        return mean_interval([mine[seed] / theirs[seed] for seed in theirs if seed in mine])


def at_least(interval: Interval, limit: float, text: Both) -> Finding:
    """Supported if the interval lies above a limit, refuted if below, else undecided.

    Values that are all equal to the limit are undecided. The text has places for `{mean}`, `{low}`,
    `{high}` and `{limit}`.
    """
    return _finding(interval.low > limit, interval.high < limit, interval, limit, text)


def at_most(interval: Interval, limit: float, text: Both) -> Finding:
    """Supported if the interval lies below a limit, refuted if above, else undecided."""
    return _finding(interval.high <= limit, interval.low > limit, interval, limit, text)


def _finding(
    supported: bool, refuted: bool, interval: Interval, limit: float, text: Both
) -> Finding:
    numbers = {name: f"{getattr(interval, name):.3g}" for name in ("mean", "low", "high")}
    numbers["limit"] = f"{limit:g}"
    word: Word = "supported" if supported else "refuted" if refuted else "undecided"
    return Finding(word, Both(*(sentence.format(**numbers) for sentence in text)))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the tutorials: its source, our prediction, and how it is settled.

    `cells` are the settings to measure at a size and on a task, `measure` gives the rows of one of
    them with a seed, `judge` settles. `natural` claims can be measured on natural language too.
    """

    title: Both
    statement: Both
    literature: Both
    literature_finds: Word
    """The verdict that follows from the literature; undecided if it does not settle the claim."""
    predicted: Both
    rule: Both
    panels: Mapping[str, Panel]
    cells: Callable[[Size, str], Sequence[Settings]]
    measure: Callable[[Settings, int], Iterable[Row]]
    judge: Callable[[Results], Sequence[Finding]]
    natural: bool = False


def verdict(findings: Sequence[Finding]) -> Word:
    """Refuted if any part is, else undecided if any part is, else supported."""
    words = {part.word for part in findings} or {"undecided"}
    return "refuted" if "refuted" in words else "undecided" if "undecided" in words else "supported"
