"""What a claim is: what is said, what is measured, and the rule by which the figures settle it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from addnorm.lab.statistics import Interval, mean_interval

Size = Literal["quick", "full", "night"]
"""All ten in ten minutes, in about two and a half hours, or in eight, on two cores."""

SEEDS: Mapping[Size, int] = {"quick": 3, "full": 5, "night": 5}

Settings = Mapping[str, Any]
"""What a cell measures and how long it trains, as JSON has it."""

Word = Literal["supported", "refuted", "undecided"]


class Both(NamedTuple):
    """A sentence in English and in Simplified Chinese."""

    en: str
    zh: str


class Row(NamedTuple):
    """One measured number of one seed: a point of a series in a panel of the picture."""

    panel: str
    series: str
    x: float | str
    value: float


class Panel(NamedTuple):
    """A panel of the picture, and a table: what is measured against what."""

    x: Both
    y: Both
    log_x: bool = False
    log_y: bool = False


class Finding(NamedTuple):
    """A part of the verdict, with the figures that it follows from."""

    word: Word
    text: Both


class Point(NamedTuple):
    """The values by seed of one point of a series are addressed by these."""

    panel: str
    series: str
    x: float | str


class Results:
    """The rows of all seeds."""

    def __init__(self, rows: Iterable[tuple[int, Row]]) -> None:
        self.values: dict[Point, dict[int, float]] = {}
        for seed, row in rows:
            self.values.setdefault(Point(*row[:3]), {})[seed] = row.value

    def series(self, panel: str) -> list[str]:
        """The series of a panel, in the order in which they were measured."""
        return list(dict.fromkeys(one.series for one in self.values if one.panel == panel))

    def xs(self, panel: str, series: str | None = None) -> list[float | str]:
        """Where a panel, or one of its series, has values; numbers in ascending order."""
        points = (one for one in self.values if one.panel == panel)
        found = dict.fromkeys(one.x for one in points if series in (None, one.series))
        numbers = [x for x in found if not isinstance(x, str)]
        return [*sorted(numbers), *(x for x in found if isinstance(x, str))]

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
        seeds = [seed for seed in columns[0] if all(seed in one for one in columns)]
        return mean_interval(
            [(columns[0][s] - columns[1][s]) - (columns[2][s] - columns[3][s]) for s in seeds]
        )

    def ratio(self, ours: Point, first: Point) -> Interval:
        """The mean ratio of two points, seed by seed, with its 95 % interval."""
        mine, theirs = self.values[ours], self.values[first]
        return mean_interval([mine[seed] / theirs[seed] for seed in theirs if seed in mine])


def at_least(found: Interval, limit: float, text: Both) -> Finding:
    """Supported if the interval lies above a limit, refuted if below, else undecided.

    Values that are all equal to the limit decide nothing.

    The text has places for `{mean}`, `{low}`, `{high}` and `{limit}`.
    """
    word: Word = "undecided"
    if found.low > limit:
        word = "supported"
    elif found.high < limit:
        word = "refuted"
    return _told(word, found, limit, text)


def at_most(found: Interval, limit: float, text: Both) -> Finding:
    """Supported if the interval lies below a limit, refuted if above, else undecided."""
    word: Word = "undecided"
    if found.high <= limit:
        word = "supported"
    elif found.low > limit:
        word = "refuted"
    return _told(word, found, limit, text)


def _told(word: Word, found: Interval, limit: float, text: Both) -> Finding:
    numbers = {name: f"{getattr(found, name):.3g}" for name in ("mean", "low", "high")}
    numbers["limit"] = f"{limit:g}"
    return Finding(word, Both(*(one.format(**numbers) for one in text)))


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A claim of the tutorials, complete: its source, our prediction, and how it is settled.

    `cells` are the settings to measure at a size and on a task, `measure` gives the rows of one of
    them with a seed, `judge` settles. `natural` claims can be measured on natural language too.
    """

    title: Both
    said: Both
    literature: Both
    literature_finds: Word
    """The verdict that would follow from what the literature says; undecided where it is silent."""
    predicted: Both
    rule: Both
    panels: Mapping[str, Panel]
    cells: Callable[[Size, str], Sequence[Settings]]
    measure: Callable[[Settings, int], Iterable[Row]]
    judge: Callable[[Results], Sequence[Finding]]
    natural: bool = False


def verdict(findings: Sequence[Finding]) -> Word:
    """Refuted if any part is, else undecided if any part is, else supported."""
    words = {one.word for one in findings}
    for word in ("refuted", "undecided"):
        if word in words or not words:
            return word if words else "undecided"
    return "supported"
