"""The times of a series: parsed from cells, and checked for order, time zone and regularity."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from itertools import pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from addnorm.errors import InputError

T = TypeVar("T")

Steps = NDArray[np.int64]
"""The number of each row on a regular grid of times, from 0."""


def parsed_time(cell: object) -> datetime | None:
    """Return the time in a cell: ISO 8601 such as `2016-07-01 00:00:00`, or `2016-07`; else None.

    Its zone is a fixed offset from UTC: with daylight saving time, steps would not be equal.
    """
    if isinstance(cell, datetime):
        return _fixed(cell)
    if isinstance(cell, date):
        return datetime(cell.year, cell.month, cell.day)
    if not isinstance(cell, str):
        return None
    text = cell.strip()
    for form in (text, f"{text}-01"):
        try:
            return datetime.fromisoformat(form)
        except ValueError:
            continue
    return None


def _fixed(time: datetime) -> datetime | None:
    """The time as a plain datetime with a fixed UTC offset; None if it has nanoseconds."""
    if getattr(time, "nanosecond", 0):
        return None
    offset = time.utcoffset()
    zone = None if offset is None else timezone(offset)
    parts = (time.year, time.month, time.day, time.hour, time.minute, time.second)
    return datetime(*parts, time.microsecond, zone)


@dataclass(frozen=True)
class Interval:
    """The time between two steps: a number of months, or a fixed duration."""

    months: int = 0
    fixed: timedelta = timedelta()

    def __str__(self) -> str:
        if not self.months:
            return str(self.fixed)
        return "1 month" if self.months == 1 else f"{self.months} months"

    def after(self, time: datetime, steps: int) -> datetime:
        """Return the time `steps` steps after a time."""
        if not self.months:
            return time + steps * self.fixed
        months = 12 * time.year + time.month - 1 + steps * self.months
        return time.replace(year=months // 12, month=months % 12 + 1)

    def position(self, first: datetime, time: datetime) -> float:
        """Return the number of steps from `first` to a time; fractional between two steps."""
        if not self.months:
            return (time - first) / self.fixed
        months = 12 * (time.year - first.year) + time.month - first.month
        same = time == Interval(1).after(first, months)
        return months / self.months if same else months / self.months + 0.5

    @property
    def season(self) -> int | None:
        """The number of steps in a day, in a week of days or in a year of months; or None."""
        if self.months:
            return 12 // self.months if self.months < 12 and 12 % self.months == 0 else None
        day = timedelta(days=1)
        if self.fixed == day:
            return 7
        return None if self.fixed > day or day % self.fixed else day // self.fixed


def regular_interval(times: Sequence[datetime]) -> Interval:
    """Return the most frequent time between neighbours, in months if all are on one day."""
    if _same_day_of_month(times):
        return Interval(_most_frequent([_months(b) - _months(a) for a, b in pairwise(times)]))
    return Interval(fixed=_most_frequent([b - a for a, b in pairwise(times)]))


def _same_day_of_month(times: Sequence[datetime]) -> bool:
    """Whether all have the same time of day and the same day of the month, up to the 28th."""
    first = times[0]
    return first.day <= 28 and all((t.day, t.time()) == (first.day, first.time()) for t in times)


def _months(time: datetime) -> int:
    return 12 * time.year + time.month


def _most_frequent(values: list[T]) -> T:
    return Counter(values).most_common(1)[0][0]


def check_order(times: Sequence[datetime], places: Sequence[str]) -> None:
    """Raise `InputError`, with its place, for the first time in another zone or out of order."""
    first = times[0].utcoffset()
    for i, time in enumerate(times):
        if time.utcoffset() != first:
            raise InputError(
                f"{places[i]}: the time {time} is in zone {_zone(time)}, and the first in "
                f"{_zone(times[0])}: bring all times to one zone, such as UTC"
            )
    for i in range(1, len(times)):
        if times[i] == times[i - 1]:
            raise InputError(f"{places[i]}: the time {times[i]} comes twice")
        if times[i] < times[i - 1]:
            raise InputError(
                f"{places[i]}: the time {times[i]} comes after {times[i - 1]}: sort the table by "
                "time"
            )


def _zone(time: datetime) -> str:
    return "no name" if time.tzinfo is None else str(time.tzname())


def steps_of(times: Sequence[datetime], places: Sequence[str], interval: Interval) -> Steps:
    """Return the index of each time on the grid. Raises `InputError` for one between two steps."""
    positions = [interval.position(times[0], time) for time in times]
    for place, time, position in zip(places, times, positions, strict=True):
        if position != int(position):
            raise InputError(
                f"{place}: the time {time} is not on the interval of {interval} that the series "
                f"has from {times[0]} on"
            )
    return np.array(positions).astype(np.int64)


def comparable(time: datetime, other: datetime) -> datetime:
    """Return a time that can be compared with another; a time without zone takes the other's.

    Raises `InputError` for a time with a zone where the other has none.
    """
    if time.tzinfo is None:
        return time.replace(tzinfo=other.tzinfo)
    if other.tzinfo is None:
        raise InputError(f"{time} has a zone, and the times of the table have none: leave it out")
    return time
