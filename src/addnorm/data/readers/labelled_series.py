"""Many series, each with a class or with a number, from a table in long format."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.config import Probability, config
from addnorm.data.examples import Corpus, Example, LabelledSeries, ScoredSeries
from addnorm.data.readers.cells import check_one_type, class_in, is_missing
from addnorm.data.readers.rows import Row, assemble
from addnorm.data.readers.series import (
    Missing,
    cell_number,
    check_column,
    check_same_columns,
    checked_variables,
    time_in,
)
from addnorm.data.readers.tables import Record, records_of
from addnorm.data.readers.text_files import find, given
from addnorm.data.times import check_order
from addnorm.errors import InputError

Placed = tuple[str, Record]
"""A row with its place."""


@dataclass(frozen=True)
class Rows:
    """The rows of one series of a table, its name, and the columns of its variables."""

    name: str
    rows: list[Placed]
    variables: tuple[str, ...]

    @property
    def where(self) -> str:
        """The place of its first row."""
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
            rows[split] = [self.row(one) for one in self.series(find(file, self.root), variables)]
            known = (names_of(one.content) for one in rows["train"])
            variables = next(filter(None, known), variables)
        return assemble(rows, valid_fraction=self.valid_fraction, seed=self.seed)

    @property
    def answer(self) -> str:
        """The column of the class, or of the number."""
        answer = self.label_column or self.value_column
        assert answer is not None
        return answer

    def row(self, one: Rows) -> Row:
        """A series with its answer, or the reason to leave it out."""
        return Row(one.where, self.example(one))

    def series(self, file: Path, variables: tuple[str, ...] = ()) -> Iterator[Rows]:
        """Yield each series of a table, which needs no answers.

        Raises `InputError`, with its place, for a series in two pieces or without a name, and for
        a column that is not there.
        """
        seen = set[str]()
        for name, rows in self.grouped(file):
            where, first = rows[0]
            if not variables:
                variables = self.variables(where, first)
            if not self.columns:
                check_same_columns(rows, first)
            if name in seen:
                raise InputError(
                    f"{where}: series {name!r} goes on after another: put the rows of a series "
                    "together"
                )
            seen.add(name)
            yield Rows(name, rows, variables)

    def grouped(self, file: Path) -> Iterator[tuple[str, list[Placed]]]:
        """Yield the neighbouring rows of each series."""
        name, rows = "", list[Placed]()
        for where, record in records_of(file, self.encoding):
            if record is None:
                raise InputError(f"{where}: an empty line in a series: take it out")
            check_column(record, self.id_column, where)
            here = record[self.id_column]
            if is_missing(here):
                raise InputError(f"{where}: {self.id_column} is empty: it names the series")
            found = class_in(here, where)
            check_one_type([(rows[0][0] if rows else where, name or found), (where, found)])
            if rows and found != name:
                yield name, rows
                rows = []
            name = found
            rows.append((where, record))
        if rows:
            yield name, rows

    def variables(self, where: str, first: Record) -> tuple[str, ...]:
        """The columns of the variables. Raises `InputError` where there is none."""
        others = [self.id_column, self.answer, *([self.time_column] if self.time_column else [])]
        found = tuple(name for name in first if name not in others)
        return checked_variables(found, first, where)

    def example(self, one: Rows) -> Example | str:
        """A series with its answer, or the reason to leave it out."""
        cells = [self.answer_in(record, where) for where, record in one.rows]
        answer = cells[0]
        for cell, (where, record) in zip(cells, one.rows, strict=True):
            if cell != answer:
                raise InputError(
                    f"{where}: {self.answer} = {record[self.answer]!r}, and {answer!r} in the "
                    f"first row of series {one.name!r}: it has one"
                )
        values = self.values(one)
        if isinstance(values, str):
            return values
        empty = f"empty {self.answer}"
        if self.label_column is not None:
            return LabelledSeries(values, answer, one.variables) if answer else empty
        number = cell_number(one.rows[0][1], self.answer, one.where, self.missing)
        return empty if math.isnan(number) else ScoredSeries(values, (number,), one.variables)

    def answer_in(self, record: Record, where: str) -> str:
        """The answer of a row as text, empty where there is none."""
        check_column(record, self.answer, where)
        cell = record[self.answer]
        return "" if is_missing(cell) else class_in(cell, where)

    def values(self, one: Rows) -> Float[Tensor, "variables time"] | str:
        """The variables of a series, or the reason to leave it out."""
        if self.time_column is not None:
            times = [time_in(record, self.time_column, where) for where, record in one.rows]
            check_order(times, [where for where, _ in one.rows])
        values = torch.tensor(
            [
                [cell_number(record, name, where, self.missing) for where, record in one.rows]
                for name in one.variables
            ]
        )
        return "an empty cell in the series" if values.isnan().any() else values


def names_of(content: Example | str) -> tuple[str, ...]:
    """The names of the variables of a series; none of one that was left out."""
    return content.names if isinstance(content, LabelledSeries | ScoredSeries) else ()
