"""A series of several variables to forecast, from a table with a time column, split by time."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from pathlib import Path
from reprlib import repr as short
from typing import Annotated, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import BeforeValidator, Field, PositiveInt
from torch import Tensor

from addnorm.config import config
from addnorm.data.examples import Corpus, Series
from addnorm.data.readers.rows import LARGEST, number_of
from addnorm.data.readers.tables import Record, records_of
from addnorm.data.readers.text_files import find
from addnorm.data.scaling import Scaling
from addnorm.data.times import (
    Interval,
    check_order,
    comparable,
    parsed_time,
    regular_interval,
    steps_of,
)
from addnorm.errors import InputError, choices

Missing = Literal["refuse", "leave_out"]
"""The treatment of a gap in time or an empty cell."""

EMPTY = ("", "nan", "na", "n/a", "null", "none")
"""The words for a missing value, in lower case."""


PlacedRecord = tuple[str, Record]
"""A row of a table with its place."""


@dataclass(frozen=True, eq=False)
class SeriesTable:
    """A series on its regular time grid; NaN for missing rows and cells.

    `places` names each step by the line of its row, a missing one by the row after it; `rows` has
    the step of each row of the file.
    """

    file: Path
    names: tuple[str, ...]
    start: datetime
    interval: Interval
    values: Float[Tensor, "variables time"]
    places: Sequence[str]
    rows: Sequence[int]

    @property
    def n_steps(self) -> int:
        """The number of steps from the first time to the last."""
        return self.values.shape[1]

    def time(self, step: int) -> datetime:
        """Return the time of a step, also beyond the last."""
        return self.interval.after(self.start, step)


def read_series(
    file: Path,
    time_column: str | None = None,
    columns: Sequence[str] = (),
    *,
    missing: Missing = "refuse",
    encoding: str = "utf-8",
) -> SeriesTable:
    """Read a series from a table.

    Without a `time_column`, the first column whose first cell is a time has the times; without
    `columns` all others are the variables, and each must hold numbers. Raises `InputError`, with
    the file and line, for times that are wrong, out of order, double, of two zones or off their
    interval; for a cell that is missing or not a number; for a table without a header or variables;
    and with `missing = "refuse"` for gaps and empty cells.
    """
    rows = [*series_rows(file, encoding)]
    if len(rows) < 2:
        raise InputError(f"{file}: a series needs at least two times, and there are {len(rows)}")
    time_name = _time_column(rows[0], time_column)
    names = _variables(rows[0], time_name, columns)
    if not columns:
        check_same_columns(rows, rows[0][1])
    places = [where for where, _ in rows]
    times = [time_in(record, time_name, where) for where, record in rows]
    values = np.array(
        [[cell_number(record, name, where, missing) for name in names] for where, record in rows]
    )
    check_order(times, places)
    interval = regular_interval(times)
    steps = steps_of(times, places, interval)
    if missing == "refuse":
        _check_gaps(steps.tolist(), times, places, interval)
    grid = np.full((steps[-1] + 1, len(names)), math.nan)
    grid[steps] = values
    return SeriesTable(
        file,
        names,
        times[0],
        interval,
        torch.from_numpy(grid).T.contiguous(),
        [places[i] for i in np.searchsorted(steps, np.arange(len(grid)))],
        steps.tolist(),
    )


def series_rows(file: Path, encoding: str) -> Iterator[PlacedRecord]:
    """Yield the rows of a table with their places. Raises `InputError` for an empty line."""
    for where, record in records_of(file, encoding):
        if record is None:
            raise InputError(f"{where}: an empty line in a series: take it out")
        yield where, record


def _time_column(first: PlacedRecord, name: str | None) -> str:
    where, record = first
    if name is not None:
        check_column(record, name, where)
        return name
    # A number alone could be a date such as 20160701, and is a value far more often.
    for name, cell in record.items():
        if parsed_time(cell) is not None and number_of(cell) is None:
            return name
    raise InputError(
        f"{where}: no column holds a time such as 2016-07-01 00:00:00: among "
        f"{', '.join(record)}. Name it with data.time_column"
    )


def _variables(first: PlacedRecord, time_name: str, columns: Sequence[str]) -> tuple[str, ...]:
    where, record = first
    for name in columns:
        check_column(record, name, where)
    if time_name in columns or len({*columns}) < len(columns):
        raise InputError(f"{where}: data.columns = {list(columns)}: each variable once, no times")
    if parsed_time(time_name) is not None:
        raise InputError(
            f"{where}: the names of the columns are {', '.join(record)}: the table has no header: "
            "give it a first line with names"
        )
    names = tuple(columns) or tuple(name for name in record if name != time_name)
    return checked_variables(names, record, where)


def checked_variables(names: tuple[str, ...], record: Record, where: str) -> tuple[str, ...]:
    """Return the names of the variables, checked.

    Raises `InputError` for none, and for an empty name.
    """
    if not names:
        raise InputError(f"{where}: no column is left for a variable: {', '.join(record)}")
    if nameless := [n for n, name in enumerate(record, 1) if name in names and not name.strip()]:
        raise InputError(
            f"{where}: column {nameless[0]} has no name, like the row numbers that pandas writes: "
            "name the columns to read with data.columns"
        )
    return names


def check_same_columns(rows: Sequence[PlacedRecord], first: Record) -> None:
    """Raise `InputError` for a row with a column that the first row lacks."""
    for where, record in rows:
        if other := next((name for name in record if name not in first), None):
            raise InputError(
                f"{where}: a column {other!r} that the first row lacks: name the columns to read "
                "with data.columns"
            )


def check_column(record: Mapping[str, object], name: str, where: str) -> None:
    """Raise `InputError`, naming the nearest column, if a row lacks a column."""
    if name not in record:
        raise InputError(f"{where}: no column {name!r}.{choices(name, record)}")


def time_in(record: Record, name: str, where: str) -> datetime:
    """Parse the time in a cell. Raises `InputError`, with its place, for anything else."""
    check_column(record, name, where)
    time = parsed_time(record[name])
    if time is None:
        raise InputError(
            f"{where}: {name} = {record[name]!r} is not a time such as 2016-07-01 00:00:00"
        )
    return time


def cell_number(record: Mapping[str, object], name: str, where: str, missing: Missing) -> float:
    """Parse the number in a cell; NaN for an empty cell, if gaps are allowed.

    Raises `InputError`, with its place, for anything else.
    """
    check_column(record, name, where)
    cell = record[name]
    number = number_of(cell)
    empty = cell is None or str(cell).strip().lower() in EMPTY
    if empty:
        if missing == "refuse":
            raise InputError(
                f"{where}: {name} is empty: fill it in, or leave out what touches it: "
                "data.missing = 'leave_out'"
            )
        return math.nan
    subject = f"{where}: {name} = {short(cell)} is"
    if number is None or not math.isfinite(number):
        hint = "name the columns to read with data.columns"
        if isinstance(cell, str) and "," in cell and number_of(cell.replace(",", "")) is not None:
            hint = "write a point instead of the comma"
        if number is not None:
            hint = "leave the cell empty where nothing was measured"
        raise InputError(f"{subject} not a number: {hint}")
    if abs(number) > LARGEST:
        raise InputError(f"{subject} too large: models compute in float32, up to {LARGEST:.2g}")
    return number


def _check_gaps(
    steps: list[int], times: Sequence[datetime], places: Sequence[str], interval: Interval
) -> None:
    for i in range(1, len(steps)):
        if (n := steps[i] - steps[i - 1] - 1) > 0:
            raise InputError(
                f"{places[i]}: {n:,} steps of {interval} are missing before {times[i]}: fill them "
                "in, or leave out the windows that touch them: data.missing = 'leave_out'"
            )


def _as_text(given: object) -> object:
    """Convert a date or time of TOML to a string."""
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
    The steps to forecast lie within one part; the past that a forecast is made from may reach back
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
        if self.scaling == "standard":
            scaling = Scaling.standard(table.values[:, : borders[0]])
        else:
            scaling = Scaling.none(len(table.names))
        scaling = replace(scaling, interval=table.interval)
        season = self.season or table.interval.season

        def part(start: int, stop: int) -> Sequence[Series]:
            if start == stop:
                return ()
            values, places = table.values[:, :stop], table.places[:stop]
            return (Series(values, start, table.names, places, scaling, season),)

        return Corpus(part(0, borders[0]), part(*borders[:2]), part(*borders[1:]))

    def read(self, file: Path) -> SeriesTable:
        """Read a table with this configuration's columns.

        Raises `InputError` like `read_series`.
        """
        return read_series(
            file, self.time_column, self.columns, missing=self.missing, encoding=self.encoding
        )

    def borders(self, table: SeriesTable) -> tuple[int, int, int]:
        """Return the steps at which validation and test begin and the test ends."""
        moments = {"valid_from": self.valid_from, "test_from": self.test_from, "until": self.until}
        steps = {
            name: table.n_steps if moment is None else step_at(table, moment, f"data.{name}")
            for name, moment in moments.items()
        }
        valid, test, end = steps.values()
        if not 0 < valid <= test <= end:
            places = ", ".join(
                f"data.{name} = {moments[name]} is step {i}" for name, i in steps.items()
            )
            raise InputError(
                f"{table.file}: {places}, of {table.n_steps}: they must follow one another"
            )
        return valid, test, end


def step_at(table: SeriesTable, moment: int | float | str, name: str) -> int:
    """Return the first step at or after a moment. Raises `InputError` for one outside the table."""
    if isinstance(moment, str):
        time = parsed_time(moment)
        if time is None:
            raise InputError(f"{name} = {moment!r} is not a date such as 2017-07-01")
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
    """The first step at or after a time; -1 if that is outside the table."""
    if not table.start <= time <= table.time(table.n_steps):
        return -1
    return bisect_left(range(table.n_steps), time, key=table.time)
