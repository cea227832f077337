"""A series of several variables to forecast, from a table with a time column, split by time."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PositiveInt

from addnorm.config import config
from addnorm.data.examples import Corpus, Series
from addnorm.data.readers.series_table import Missing, SeriesTable, read_series
from addnorm.data.readers.text_files import find
from addnorm.data.scaling import Scaling
from addnorm.data.times import comparable, parsed_time
from addnorm.errors import InputError


def _as_text(given: object) -> object:
    """A date that TOML knows, in the words of a string."""
    return str(given) if isinstance(given, date | datetime) else given


Moment = Annotated[
    Annotated[int, Field(ge=0)] | Annotated[float, Field(gt=0, lt=1)] | str,
    BeforeValidator(_as_text),
]
"""A place in a series: a date, the number of a row from 0, or a share of the rows."""


@config
class SeriesConfig:
    """A series of one or more variables to forecast: a table with a column of times.

    The training part ends where the validation part begins, and that where the test part begins.
    What is forecast lies within a part alone; the past that a forecast is made from may reach back
    into the part before.
    """

    kind: Literal["series"] = "series"
    root: Path | None = None
    """Where relative paths start; by default `$ADDNORM_DATA`, else the current folder."""
    file: Path
    """The table: `.csv`, `.tsv`, `.jsonl` or `.parquet`, or the folder of a split that `datasets`
    saved to disk: a row for each time, in order.
    """
    time_column: str | None = None
    """The column of the times, in ISO 8601; by default the first whose cells are times."""
    columns: tuple[str, ...] = ()
    """The columns of the variables; by default all but the times."""
    valid_from: Moment = 0.7
    """Where validation begins: a date such as `"2017-07-01"`, the number of a row from 0, or a
    share of the rows.
    """
    test_from: Moment = 0.8
    """Where the test begins, written in the same way."""
    until: Moment | None = None
    """Where the test ends, written in the same way; by default with the table."""
    scaling: Literal["standard", "none"] = "standard"
    """Whether each variable is brought to mean 0 and deviation 1, by its training part alone."""
    missing: Missing = "refuse"
    """Whether a gap in time or an empty cell is an error, or the windows that touch it are left
    out and counted.
    """
    season: PositiveInt | None = None
    """Steps after which a series repeats itself, for a forecast to compare with; by default a day
    of hours or minutes, a week of days, a year of months.
    """
    encoding: str = "utf-8"
    """The character encoding of the table, by its Python name."""

    def load(self) -> Corpus:
        """Read and split the table. Raises `InputError` with the location of the first error."""
        table = self.read(find(self.file, self.root))
        borders = self.borders(table)
        known = table.values[:, : borders[0]]
        standard = self.scaling == "standard"
        scaling = Scaling.standard(known) if standard else Scaling.none(len(table.names))
        scaling = replace(scaling, interval=table.interval)
        season = self.season or table.interval.season

        def part(start: int, stop: int) -> Sequence[Series]:
            if start == stop:
                return ()
            values, places = table.values[:, :stop], table.places[:stop]
            return (Series(values, start, table.names, places, scaling, season),)

        return Corpus(part(0, borders[0]), part(*borders[:2]), part(*borders[1:]))

    def read(self, file: Path) -> SeriesTable:
        """Read a table by the columns of this one. Raises `InputError` as `read_series` does."""
        return read_series(
            file, self.time_column, self.columns, missing=self.missing, encoding=self.encoding
        )

    def borders(self, table: SeriesTable) -> tuple[int, int, int]:
        """The steps where validation and test begin, and where the test ends."""
        given = {"valid_from": self.valid_from, "test_from": self.test_from, "until": self.until}
        found = {
            name: table.n_steps if moment is None else step_at(table, moment, f"data.{name}")
            for name, moment in given.items()
        }
        valid, test, end = found.values()
        if not 0 < valid <= test <= end:
            places = ", ".join(
                f"data.{name} = {given[name]} is step {i}" for name, i in found.items()
            )
            raise InputError(
                f"{table.file}: {places}, of {table.n_steps}: they must follow one another"
            )
        return valid, test, end


def step_at(table: SeriesTable, moment: int | float | str, name: str) -> int:
    """The first step that is not before a moment. Raises `InputError` for one outside the table."""
    if isinstance(moment, str):
        time = parsed_time(moment)
        if time is None:
            raise InputError(f"{name} = {moment!r} is no date such as 2017-07-01")
        step = _first_at(table, comparable(time, table.start))
    else:
        row = moment if isinstance(moment, int) else round(moment * len(table.rows))
        step = [*table.rows, table.n_steps][min(row, len(table.rows))]
        if row > len(table.rows):
            raise InputError(
                f"{name} = {moment}: {table.file} has {len(table.rows):,} rows: at most that many"
            )
    if not 0 <= step <= table.n_steps:
        raise InputError(
            f"{name} = {moment}: {table.file} goes from {table.start} to "
            f"{table.time(table.n_steps - 1)}"
        )
    return step


def _first_at(table: SeriesTable, time: datetime) -> int:
    """The first step at a time or after it; -1 where that is outside the table."""
    if not table.start <= time <= table.time(table.n_steps):
        return -1
    low, high = 0, table.n_steps
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if table.time(middle) < time else (low, middle)
    return low
