"""Many series, each with a class or numbers, from a table in long format."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.config import Probability, config
from addnorm.data.example import is_missing
from addnorm.data.examples import Corpus, Example, LabelledSeries, ScoredSeries
from addnorm.data.readers.rows import Row, assemble, check_one_type, class_in
from addnorm.data.readers.series import (
    Missing,
    PlacedRecord,
    cell_number,
    check_column,
    check_same_columns,
    checked_variables,
    series_rows,
    time_in,
)
from addnorm.data.readers.tables import Record
from addnorm.data.readers.text_files import find, given
from addnorm.data.times import check_order
from addnorm.errors import InputError


@dataclass(frozen=True)
class Rows:
    """One series of a table: its name, its rows, and the columns of its variables."""

    name: str
    rows: list[PlacedRecord]
    variables: tuple[str, ...]

    @property
    def where(self) -> str:
        """The place of the first row."""
        return self.rows[0][0]


@config
class LabelledSeriesConfig:
    """Many series with a class each, or with a number, to classify or to predict it.

    A table in long format: a row for each step of each series, the rows of a series together and
    in order. A column names the series, another its class (or its number), the same in all of its
    rows; the others are its variables. Series may be of different lengths.
    """

    kind: Literal["labelled_series"] = "labelled_series"
    root: Path | None = None
    """Where relative paths start; by default `$ADDNORM_DATA`, else the current folder."""
    train: Path
    """The table to learn from: `.csv`, `.tsv`, `.jsonl` or `.parquet`, or the folder of a split
    that `datasets` saved to disk.
    """
    valid: Path | None = None
    """The table to validate on while training."""
    test: Path | None = None
    """The table that training never sees."""
    id_column: str = "id"
    """The column that says which series a row belongs to."""
    label_column: str | None = None
    """The column of the class; give this or `value_column`."""
    value_column: str | None = None
    """The column of the number to predict, for a head with `problem = "regression"`."""
    time_column: str | None = None
    """The column of the times, if there is one: they must rise within each series."""
    columns: tuple[str, ...] = ()
    """The columns of the variables; by default all others."""
    missing: Missing = "refuse"
    """Whether an empty cell is an error, or its series is left out and counted."""
    valid_fraction: Probability = 0.0
    """The share of train that is held out for validation, where `valid` names no file."""
    seed: int = 0
    """The seed of the random series that `valid_fraction` holds out."""
    encoding: str = "utf-8"
    """The character encoding of the tables, by its Python name."""

    def __post_init__(self) -> None:
        if (self.label_column is None) == (self.value_column is None):
            raise ValueError("give either label_column, of a class, or value_column, of a number")

    def load(self) -> Corpus:
        """Read every series. Raises `InputError` with the location of the first error.

        The variables of all tables are those of the training data.
        """
        variables, rows = self.columns, dict[str, list[Row]]()
        for split, file in given(self.train, self.valid, self.test).items():
            every = self.series(find(file, self.root), variables)
            rows[split] = [Row(series.where, self.example(series)) for series in every]
            names = (names_of(row.content) for row in rows["train"])
            variables = next(filter(None, names), variables)
        return assemble(rows, valid_fraction=self.valid_fraction, seed=self.seed)

    @property
    def answer(self) -> str:
        """The column that holds the class or the number."""
        answer = self.label_column or self.value_column
        assert answer is not None
        return answer

    def series(self, file: Path, variables: tuple[str, ...] = ()) -> Iterator[Rows]:
        """Yield each series of a table, without reading its class or number.

        Raises `InputError`, with its place, for a series in two pieces or without a name, and for
        a missing column.
        """
        seen, previous = set[str](), list[tuple[str, str]]()
        for name, group in groupby(series_rows(file, self.encoding), self.name_in):
            rows = [*group]
            where, first = rows[0]
            check_one_type([*previous, (where, name)])
            if not variables:
                variables = self.variables(where, first)
            if not self.columns:
                check_same_columns(rows, first)
            if name in seen:
                raise InputError(
                    f"{where}: series {name!r} continues after another: put the rows of a series "
                    "together"
                )
            seen.add(name)
            previous = [(where, name)]
            yield Rows(name, rows, variables)

    def name_in(self, placed: PlacedRecord) -> str:
        """Return the name of the series to which a row belongs.

        Raises `InputError` if it is missing.
        """
        where, record = placed
        check_column(record, self.id_column, where)
        if is_missing(record[self.id_column]):
            raise InputError(f"{where}: {self.id_column} is empty: it names the series")
        return class_in(record[self.id_column], where)

    def variables(self, where: str, first: Record) -> tuple[str, ...]:
        """Return the columns of the variables. Raises `InputError` if there are none."""
        names = tuple(
            name for name in first if name not in (self.id_column, self.answer, self.time_column)
        )
        return checked_variables(names, first, where)

    def example(self, series: Rows) -> Example | str:
        """Return a series with its class or number, or the reason to skip it."""
        answers = [self.answer_in(record, where) for where, record in series.rows]
        first = answers[0]
        for answer, (where, record) in zip(answers, series.rows, strict=True):
            if answer != first:
                raise InputError(
                    f"{where}: {self.answer} = {record[self.answer]!r}, and {first!r} in the "
                    f"first row of series {series.name!r}: a series has one"
                )
        values = self.values(series)
        if isinstance(values, str):
            return values
        if self.label_column is not None and first:
            return LabelledSeries(values, first, series.variables)
        if self.value_column is not None:
            number = cell_number(series.rows[0][1], self.value_column, series.where, self.missing)
            if not math.isnan(number):
                return ScoredSeries(values, (number,), series.variables)
        return f"empty {self.answer}"

    def answer_in(self, record: Record, where: str) -> str:
        """Return the class or number of a row as text, empty if it is missing."""
        check_column(record, self.answer, where)
        cell = record[self.answer]
        return "" if is_missing(cell) else class_in(cell, where)

    def values(self, series: Rows) -> Float[Tensor, "variables time"] | str:
        """Return the variables of a series, or the reason to skip it."""
        if self.time_column is not None:
            times = [time_in(record, self.time_column, where) for where, record in series.rows]
            check_order(times, [where for where, _ in series.rows])
        values = torch.tensor(
            [
                [cell_number(record, name, where, self.missing) for where, record in series.rows]
                for name in series.variables
            ]
        )
        return "an empty cell in the series" if values.isnan().any() else values


def names_of(content: Example | str) -> tuple[str, ...]:
    """Return the names of a series' variables; none for a skipped series."""
    return content.names if isinstance(content, LabelledSeries | ScoredSeries) else ()
