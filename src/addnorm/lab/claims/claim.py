"""A claim: its statement, its measurements, and the rule by which figures settle it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from addnorm.lab.statistics import Interval, mean_interval

Size = Literal["quick", "full", "night"]
"""All ten claims take ten minutes, two and a half hours, or eight hours on two cores."""

SEEDS: Mapping[Size, int] = {"quick": 3, "full": 5, "night": 5}

Settings = Mapping[str, Any]
"""The measurement of a cell and the steps of its training, as values of JSON."""

Word = Literal["supported", "refuted", "undecided"]


Both = tuple[str, str]
"""A sentence in English and in Simplified Chinese."""

LOSS: Both = ("loss, nats", "损失（纳特）")

Point = tuple[str, str, float | str]
"""A point of a series: panel, series and x; it has a value for each seed."""


class Row(NamedTuple):
    """One number measured with one seed: a point of a series in a panel of the picture."""

    panel: str
    series: str
    x: float | str
    value: float


class Panel(NamedTuple):
    """A panel of the picture, also shown as a table: its axes, and which are logarithmic."""

    x: Both
    y: Both
    log_x: bool = False
    log_y: bool = False


class Finding(NamedTuple):
    """A part of the verdict, with the figures that it is based on."""

    word: Word
    text: Both

    @classmethod
    def at_least(cls, interval: Interval, limit: float, text: Both, **names: object) -> "Finding":
        """Return supported if the interval lies above a limit, refuted if below, else undecided.

        Values that are all equal to the limit are undecided. The text has places for `{mean}`,
        `{low}`, `{high}`, `{limit}` and the `names`.
        """
        held, failed = interval.low > limit, interval.high < limit
        return cls._of(held, failed, interval, limit, text, names)

    @classmethod
    def at_most(cls, interval: Interval, limit: float, text: Both, **names: object) -> "Finding":
        """Return supported if the interval lies below a limit, refuted if above, else undecided."""
        held, failed = interval.high <= limit, interval.low > limit
        return cls._of(held, failed, interval, limit, text, names)

    @classmethod
    def _of(
        cls,
        held: bool,
        failed: bool,
        interval: Interval,
        limit: float,
        text: Both,
        names: Mapping[str, object],
    ) -> "Finding":
        numbers = {name: f"{getattr(interval, name):.3g}" for name in ("mean", "low", "high")}
        numbers["limit"] = f"{limit:g}"
        english, chinese = (sentence.format(**numbers, **names) for sentence in text)
        return cls(
            "supported" if held else "refuted" if failed else "undecided", (english, chinese)
        )


class Results:
    """The rows of all seeds, by point."""

    def __init__(self, rows: Iterable[tuple[int, Row]]) -> None:
        self.values: dict[Point, dict[int, float]] = {}
        for seed, row in rows:
            self.values.setdefault(row[:3], {})[seed] = row.value

    def series(self, panel: str) -> list[str]:
        """Return the series of a panel, in the order of measurement."""
        return list(dict.fromkeys(series for at, series, _ in self.values if at == panel))

    def xs(self, panel: str, series: str | None = None) -> list[float | str]:
        """Return the x values of a panel or of one of its series; numbers are sorted."""
        xs = dict.fromkeys(
            x for at, name, x in self.values if at == panel and series in (None, name)
        )
        numbers = [x for x in xs if not isinstance(x, str)]
        return [*sorted(numbers), *(x for x in xs if isinstance(x, str))]

    def mean(self, panel: str, series: str, x: float | str) -> Interval:
        """Return the mean over seeds with its 95 % interval."""
        return mean_interval(list(self.values[panel, series, x].values()))

    def difference(self, ours: Point, first: Point) -> Interval:
        """Return the mean difference of two points, seed by seed, with its 95 % interval."""
        return mean_interval([a - b for a, b in self._by_seed(ours, first)])

    def ratio(self, ours: Point, first: Point) -> Interval:
        """Return the mean ratio of two points, seed by seed, with its 95 % interval."""
        return mean_interval([a / b for a, b in self._by_seed(ours, first)])

    def growth(
        self, panel: str, ours: str, first: str, x: float | str, before: float | str
    ) -> Interval:
        """Return how much two series' difference grows from `before` to `x`, and the interval."""
        points = [(panel, series, at) for at in (x, before) for series in (ours, first)]
        return mean_interval([(a - b) - (c - d) for a, b, c, d in self._by_seed(*points)])

    def _by_seed(self, *points: Point) -> list[list[float]]:
        """Return the values of some points for each seed that has all of them."""
        columns = [self.values[point] for point in points]
        seeds = [seed for seed in columns[-1] if all(seed in column for column in columns)]
        return [[column[seed] for column in columns] for seed in seeds]


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
    """Return refuted if any part is; else undecided if any part is; else supported."""
    words = {part.word for part in findings} or {"undecided"}
    return "refuted" if "refuted" in words else "undecided" if "undecided" in words else "supported"
