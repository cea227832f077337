"""Many series, each with a class or with a number, from a table in long format."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from addnorm.config import Probability, config
from addnorm.data.examples import Corpus, Example, LabelledSeries, ScoredSeries
from addnorm.data.rows import Row, assemble
from addnorm.data.series_table import Missing, cell_number, check_column, time_in
from addnorm.data.tables import Record, records_of
from addnorm.data.text_files import find, given
from addnorm.data.times import check_order
from addnorm.errors import InputError

Placed = tuple[str, Record]
"""A row with its place."""


@dataclass
class _Names:
    """The columns of a table: that of the answer, and those of the variables."""

    answer: str
    variables: tuple[str, ...]
    seen: set[str] = field(default_factory=set[str])


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
    """The table to learn from: `.csv`, `.tsv`, `.jsonl` or `.parquet`."""
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
        """Read every series. Raises `InputError` with the location of the first error."""
        files = given(self.train, self.valid, self.test)
        rows = {split: self.rows(find(file, self.root)) for split, file in files.items()}
        return assemble(rows, valid_fraction=self.valid_fraction, seed=self.seed)

    def rows(self, file: Path) -> Iterator[Row]:
        """Yield each series of a table, with the place of its first row."""
        names: _Names | None = None
        for name, rows in self.grouped(file):
            names = self.names(*rows[0]) if names is None else names
            if name in names.seen:
                raise InputError(
                    f"{rows[0][0]}: series {name!r} goes on after another: put the rows of a "
                    "series together"
                )
            names.seen.add(name)
            yield Row(rows[0][0], self.example(name, rows, names))

    def grouped(self, file: Path) -> Iterator[tuple[str, list[Placed]]]:
        """Yield the neighbouring rows of each series."""
        name, rows = "", list[Placed]()
        for where, record in records_of(file, self.encoding):
            if record is None:
                raise InputError(f"{where}: an empty line in a series: take it out")
            check_column(record, self.id_column, where)
            here = str(record[self.id_column])
            if rows and here != name:
                yield name, rows
                rows = []
            name = here
            rows.append((where, record))
        if rows:
            yield name, rows

    def names(self, where: str, first: Record) -> _Names:
        """The columns of a table. Raises `InputError` for one that is not there."""
        answer = self.label_column or self.value_column
        assert answer is not None
        others = [self.id_column, answer, *([self.time_column] if self.time_column else [])]
        for name in (*others, *self.columns):
            check_column(first, name, where)
        variables = self.columns or tuple(name for name in first if name not in others)
        if not variables:
            raise InputError(f"{where}: no column is left for a variable: {', '.join(first)}")
        return _Names(answer, variables)

    def example(self, name: str, rows: list[Placed], names: _Names) -> Example | str:
        """A series with its answer, or the reason to leave it out."""
        answer = str(rows[0][1][names.answer]).strip()
        for where, record in rows:
            if str(record[names.answer]).strip() != answer:
                raise InputError(
                    f"{where}: {names.answer} = {record[names.answer]!r}, and {answer!r} in the "
                    f"first row of series {name!r}: it has one"
                )
        if self.time_column is not None:
            times = [time_in(record, self.time_column, where) for where, record in rows]
            check_order(times, [where for where, _ in rows])
        values = torch.tensor(
            [
                [cell_number(record, one, where, self.missing) for where, record in rows]
                for one in names.variables
            ]
        )
        if values.isnan().any():
            return "an empty cell in the series"
        if self.label_column is not None:
            return LabelledSeries(values, answer) if answer else f"empty {names.answer}"
        number = cell_number(rows[0][1], names.answer, rows[0][0], self.missing)
        return f"empty {names.answer}" if math.isnan(number) else ScoredSeries(values, (number,))
