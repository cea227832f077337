"""Corpora in tables with named columns: .tsv, .csv, .jsonl and .parquet files."""

import csv
import io
import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, islice
from operator import itemgetter
from pathlib import Path
from reprlib import repr as short
from typing import Any, ClassVar, Literal, cast

from addnorm.config import config
from addnorm.data.conversation import check_text, is_text
from addnorm.data.example import is_missing, plain
from addnorm.data.example_columns import ExampleColumns
from addnorm.data.examples import (
    Corpus,
    Example,
    Labelled,
    MultiLabelled,
    Pair,
    Scored,
    Tagged,
    Text,
)
from addnorm.data.readers.rows import (
    LARGEST,
    Placed,
    Row,
    class_in,
    number_of,
)
from addnorm.data.readers.saved_dataset import described_features, is_saved, named_rows, saved_rows
from addnorm.data.readers.text_files import RowFiles, find, given, lines_of, read_text
from addnorm.errors import InputError, choices, optional

Record = Mapping[str, object]
"""The cells of a row by column name."""

AT_ONCE = 1024
"""The rows that are read column by column."""

KINDS = (
    ("source", "target"),
    ("text", "label"),
    ("text", "labels"),
    ("text", "values"),
    ("text", "text_pair", "label"),
    ("text", "text_pair", "values"),
    ("tokens", "tags"),
    ("text",),
)


@config
class Columns(ABC):
    """The names of the columns that hold an example; they decide its kind.

    `source` and `target`, or `text` and `label`, or `tokens` and `tags`, or `text` alone; `text`
    and `labels` where a text has several or none, `text` and `values` where it has numbers;
    `text_pair` with `text` where two texts are read together. A
    dotted name reaches into a nested column: `source = "translation.en"`. Words and tags are lists,
    or strings with spaces between; labels are lists, or strings with commas between; so are values,
    or one number.
    """

    source: str | None = None
    """The column of the sentence to translate, or of a list of sentences, which make one text."""
    target: str | None = None
    """The column of its translation, or of a list of references: training reads the first, ROUGE
    counts the best.
    """
    text: str | None = None
    """The column of the text: alone for a language model, with `label` for a classifier."""
    text_pair: str | None = None
    """The column of a second text, read together with the first: an answer to a question."""
    label: str | None = None
    """The column of the class."""
    labels: str | None = None
    """The column of several labels: a list, or words with commas between."""
    values: str | None = None
    """The column of a number to predict, or of several: a list, or numbers with commas between."""
    tokens: str | None = None
    """The column of the words to tag: a list, or words with spaces between."""
    tags: str | None = None
    """The column of their tags, one for each word."""

    kinds: ClassVar[tuple[tuple[str, ...], ...]] = KINDS  # the fields that are given together

    def __post_init__(self) -> None:
        if tuple(self.columns()) not in self.kinds:
            kinds = "; ".join(" and ".join(names) for names in self.kinds)
            raise ValueError(f"name the columns of one kind of example: {kinds}")

    def columns(self) -> dict[str, str]:
        """The name of the column for each field of an example."""
        columns = {
            "source": self.source,
            "target": self.target,
            "text": self.text,
            "text_pair": self.text_pair,
            "label": self.label,
            "labels": self.labels,
            "values": self.values,
            "tokens": self.tokens,
            "tags": self.tags,
        }
        return {name: column for name, column in columns.items() if column is not None}

    @abstractmethod
    def load(self) -> Corpus:
        """Read and check every row. Raises `InputError` with the location of the first error."""

    def row(self, where: str, record: Record) -> Row:
        """Convert a record to an example, or return the reason to skip it.

        Raises `InputError` for a missing column or a cell of the wrong type.
        """
        return row_of(self.columns(), where, record)


def row_of(columns: Mapping[str, str], where: str, record: Record) -> Row:
    """Convert a record to an example (see `Columns.row`), given the columns of its fields."""
    cells: dict[str, object] = {}
    empty: list[str] = []
    for name, column in columns.items():
        cell = record.get(column)
        if not (isinstance(cell, str) and cell.strip()):  # in most tables all are text
            cell = plain(cell_of(record, column, where))
            if _is_empty(name, cell):
                empty.append(name)
        cells[name] = cell
    content = f"empty {' and '.join(empty)}" if empty else _example(cells, where)
    return Row(where, content)


def rows_of(columns: Mapping[str, str], table: "Table") -> Iterator[Row | Placed]:
    """Yield the example in each record, or the reason to skip it (see `row_of`).

    Examples that are read column by column come together, in place of their rows.
    """
    for block in _blocks(table.rows):
        filled = [(where, cells) for where, cells in block if cells is not None]
        yield from (Row(where, "empty line") for where, cells in block if cells is None)
        if (plain_rows := _plain_rows(columns, filled, table)) is not None:
            yield from plain_rows
            continue
        for where, cells in filled:
            yield row_of(columns, where, table.record(cells))


def _blocks(rows: "Cells") -> Iterator[list[tuple[str, Any]]]:
    """Yield some rows at a time; those before an error come before it is raised."""
    left = iter(rows)
    while True:
        block: list[tuple[str, Any]] = []
        try:
            block.extend(islice(left, AT_ONCE))
        except InputError:
            yield block
            raise
        if not block:
            return
        yield block


def _plain_rows(
    columns: Mapping[str, str], block: Sequence[tuple[str, Any]], table: "Table"
) -> Iterator[Row | Placed] | None:
    """Return the examples of a block in which every cell is a text, and the rows with a blank one.

    Almost all blocks of a large table are such, and are read and checked column by column. None
    for others, and for kinds of examples with other cells.
    """
    kind = OF_TEXTS.get(tuple(columns))
    if kind is None or not block:
        return None
    read: list[list[str]] = []
    for column in columns.values():
        cells = table.column(column, [cells for _, cells in block])
        if {*map(type, cells)} != {str} or not is_text("".join(cells)):
            return None
        read.append(cells)
    are_full = [*map(all, zip(*(map(str.strip, texts) for texts in read), strict=True))]
    blank = [row for row, is_full in zip(block, are_full, strict=True) if not is_full]
    if not blank:
        return iter([Placed([where for where, _ in block], kind(read))])
    places = [*compress((where for where, _ in block), are_full)]
    full = Placed(places, kind([[*compress(texts, are_full)] for texts in read]))
    rows = (row_of(columns, where, table.record(cells)) for where, cells in blank)
    return chain([full] if places else [], rows)


def _classes(columns: Sequence[list[str]]) -> Sequence[Example]:
    return [Labelled(text, label.strip()) for text, label in zip(*columns, strict=True)]


OF_TEXTS: Mapping[tuple[str, ...], Callable[[Sequence[list[str]]], Sequence[Example]]] = {
    ("source", "target"): partial(ExampleColumns, Pair),
    ("text",): partial(ExampleColumns, Text),
    ("text", "label"): _classes,
}
"""The kinds of examples that are made of texts alone, by their fields."""


def reads_pairs(data: object) -> bool:
    """Whether this data configuration gives examples of two texts that are read together."""
    return isinstance(data, Columns) and data.text_pair is not None


def cell_of(record: Record, column: str, where: str) -> object:
    """Return the cell of a column, which may be nested; None if its outer column is null.

    Raises `InputError` if there is no such column.
    """
    if column in record:
        return record[column]
    outer, dot, inner = column.partition(".")
    nested = record.get(outer)
    if dot and outer in record and nested is None:
        return None
    if dot and isinstance(nested, dict):
        return cell_of(cast(Record, nested), inner, where)
    raise InputError(f"{where}: no column {column!r}.{choices(column, record)}")


def _is_empty(name: str, cell: object) -> bool:
    """Whether a cell is empty; a blank text counts as an empty list of labels."""
    if isinstance(cell, str):
        return name != "labels" and not cell.strip()
    return is_missing(cell) or (cell == [] and name != "labels")


def _example(cells: Record, where: str) -> Example | str:
    second = _text(cells["text_pair"], where) if "text_pair" in cells else None
    match cells:
        case {"source": source, "target": target}:
            return _pair(source, target, where)
        case {"text": text, "label": label}:
            return Labelled(_text(text, where), class_in(label, where), second)
        case {"text": text, "labels": labels}:
            return MultiLabelled(_text(text, where), _labels(labels, where))
        case {"text": text, "values": values}:
            return Scored(_text(text, where), _numbers(values, where), second)
        case {"text": text}:
            return Text(_text(text, where))
        case _:
            tokens, tags = _words(cells["tokens"], where), _words(cells["tags"], where)
            if len(tokens) != len(tags):
                raise InputError(f"{where}: {len(tokens)} tokens but {len(tags)} tags")
            return Tagged(tokens, tags)


def _pair(source: object, target: object, where: str) -> Pair | str:
    """Build a pair: source sentences are joined, several targets are references in order."""
    if isinstance(source, str) and isinstance(
        target, str
    ):  # as in most tables: cells are not blank
        return Pair(_text(source, where), _text(target, where))
    if isinstance(source, list):
        sentences = (_text(cell, where).strip() for cell in cast(list[object], source))
        source = " ".join(filter(None, sentences))
    targets = cast(list[object], target) if isinstance(target, list) else [target]
    first, *others = [_text(cell, where) for cell in targets]
    text = _text(source, where)
    if not all(side.strip() for side in (text, first, *others)):
        return "an empty source or reference"
    return Pair(text, first, tuple(others))


def _labels(cell: object, where: str) -> tuple[str, ...]:
    """The distinct labels in a cell, in order."""
    labels = cast(list[object] | object, cell.split(",") if isinstance(cell, str) else cell)
    if not isinstance(labels, list):
        raise InputError(
            f"{where}: expected labels, a list or with commas between, not {short(cell)}"
        )
    if not all(isinstance(label, str) or not is_missing(label) for label in labels):
        raise InputError(f"{where}: an empty label among {short(cell)}")
    names = (class_in(label, where) for label in labels)
    return tuple(dict.fromkeys(filter(None, names)))


def _numbers(cell: object, where: str) -> tuple[float, ...]:
    parts = cell.split(",") if isinstance(cell, str) else cell
    cells = cast(list[object], parts) if isinstance(parts, list) else [parts]
    numbers = tuple(number for part in cells if (number := number_of(part)) is not None)
    if len(numbers) != len(cells) or not all(map(math.isfinite, numbers)):
        raise InputError(
            f"{where}: expected numbers, a list or with commas between, not {short(cell)}"
        )
    if max(map(abs, numbers)) > LARGEST:
        raise InputError(
            f"{where}: {short(cell)} is too large: models compute in float32, up to {LARGEST:.2g}"
        )
    return numbers


def _words(cell: object, where: str) -> tuple[str, ...]:
    if isinstance(cell, str):
        return tuple(_text(cell, where).split())
    if isinstance(cell, list):
        return tuple(_text(word, where).strip() for word in cast(list[object], cell))
    raise InputError(f"{where}: expected a list of words, not {short(cell)}")


def _text(cell: object, where: str) -> str:
    if not isinstance(cell, str):
        raise InputError(f"{where}: expected text, not {short(cell)}")
    check_text(cell, where)
    return cell


@config
class TableConfig(RowFiles, Columns):
    """Any corpus in a table, of the kind that its columns say.

    The suffix says how to read it: `.tsv` (tabs, no quotes) and `.csv` (quotes as in RFC 4180)
    start with the names of the columns, `.jsonl` holds an object per line; each may be `.gz`.
    `.parquet` needs pyarrow. A row whose cells do not match the header is an error.
    """

    kind: Literal["table"] = "table"
    train: Path
    """The table to learn from: `.tsv`, `.csv`, `.jsonl` or `.parquet`."""
    valid: Path | None = None
    """The table to validate on while training."""
    test: Path | None = None
    """The table that training never sees."""

    def rows(self) -> Mapping[str, Iterable[Row | Placed]]:
        """Return the rows of each given split."""
        return {k: self.table(v) for k, v in given(self.train, self.valid, self.test).items()}

    def table(self, path: Path) -> Iterator[Row | Placed]:
        """Yield the rows of one file."""
        return rows_of(self.columns(), read_table(find(path, self.root), self.encoding))


Records = Iterable[tuple[str, Record | None]]
"""The location and cells of each row; None for an empty line."""

Cells = Iterable[tuple[str, Any]]
"""The location and cells of each row, in the form of a `Table`; None for an empty line."""


@dataclass(frozen=True)
class Table:
    """The rows of a table: with the cells in the order of `names`, else by column name."""

    rows: Cells
    names: Sequence[str] | None = None

    def record(self, cells: Any) -> Record:
        """Return the cells of a row by column name."""
        return cells if self.names is None else dict(zip(self.names, cells, strict=True))

    def column(self, name: str, rows: Sequence[Any]) -> list[Any]:
        """Return the cell of each row in a column; None where there is no such column."""
        if self.names is None:
            return [record.get(name) for record in rows]
        place = {name: n for n, name in enumerate(self.names)}.get(name)
        return [None] * len(rows) if place is None else [*map(itemgetter(place), rows)]


def records_of(table: Path, encoding: str = "utf-8") -> Records:
    """Read the rows of a table. Raises `InputError` as `read_table`."""
    read = read_table(table, encoding)
    return ((where, None if cells is None else read.record(cells)) for where, cells in read.rows)


def read_table(table: Path, encoding: str = "utf-8") -> Table:
    """Read a table. Raises `InputError` for an unknown suffix and a damaged table.

    A table may also be the folder of a dataset that Hugging Face's library saved to disk.
    """
    if is_saved(table):
        return Table(saved_rows(table))
    suffix = suffix_of(table)
    if table.suffix == ".parquet":
        return Table(_parquet(table))
    if suffix in READERS:
        return READERS[suffix](table, read_text(table, encoding))
    kinds = ", ".join([*READERS, ".parquet"])
    raise InputError(f"{table}: unknown kind of table {suffix!r}; valid: {kinds}")


def _tsv(path: Path, text: str) -> Table:
    lines = lines_of(text)
    names = _header(lines[0].split("\t"), path)
    rows = ((n, line.split("\t") if line.strip() else None) for n, line in enumerate(lines[1:], 2))
    return Table(_checked(path, names, rows), names)


def _csv(path: Path, text: str) -> Table:
    # The csv module limits the cell size, for the whole process; long cells are allowed here.
    csv.field_size_limit(max(len(text), csv.field_size_limit()))
    rows = _csv_rows(path, csv.reader(io.StringIO(text, newline="\n"), strict=True))
    names = _header(next(rows)[1], path)
    return Table(_checked(path, names, rows), names)


def _csv_rows(path: Path, reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield each row with the line on which it begins."""
    n = 1
    try:
        for cells in reader:
            yield n, cells
            n = reader.line_num + 1
    except csv.Error as error:
        raise InputError(f"{path}:{n}: not CSV: {error}") from error


def _checked(
    path: Path, names: Sequence[str], rows: Iterable[tuple[int, list[str] | None]]
) -> Cells:
    """Yield the cells of each row. Raises `InputError` for more or fewer than there are names."""
    file, width = str(path), len(names)
    for n, cells in rows:
        if cells and len(cells) != width:
            raise InputError(f"{file}:{n}: {len(cells)} cells, but {width} columns in the header")
        yield f"{file}:{n}", cells or None


def _header(names: list[str], path: Path) -> list[str]:
    """Read the column names from the first line.

    Raises `InputError` for repeated ones and for another separator.
    """
    if double := next((name for i, name in enumerate(names) if name and name in names[:i]), None):
        raise InputError(f"{path}:1: two columns have the name {double!r}: give each one its own")
    others = {".csv": (";", "\t"), ".tsv": (",", ";")}.get(suffix_of(path), ())
    if len(names) == 1 and (mark := next((mark for mark in others if mark in names[0]), None)):
        raise InputError(
            f"{path}:1: {mark!r} stands between the names {names[0]!r}: a .csv has commas there, "
            "and a .tsv tabs: convert it"
        )
    return names


def suffix_of(table: Path) -> str:
    """Return the suffix that decides how a table is read, ignoring compression."""
    return table.with_suffix("").suffix if table.suffix == ".gz" else table.suffix


def _jsonl(path: Path, text: str) -> Table:
    return Table(_objects(path, text))


def _objects(path: Path, text: str) -> Records:
    file = str(path)
    for n, line in enumerate(lines_of(text), 1):
        where = f"{file}:{n}"
        yield where, json_object(line, where) if line.strip() else None


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Build a JSON object from its pairs.

    Raises `ValueError` for two alike, of which one would be lost.
    """
    record = dict(pairs)
    if len(record) < len(pairs):
        names = [name for name, _ in pairs]
        double = next(name for i, name in enumerate(names) if name in names[:i])
        raise ValueError(f"two values of {double!r} in one object")
    return record


def _integer(digits: str) -> int:
    """Convert digits to an integer. Raises `ValueError` for more than Python reads."""
    try:
        return int(digits)
    except ValueError as error:
        limit = sys.get_int_max_str_digits()
        raise ValueError(f"an integer of more than {limit:,} digits is not read") from error


OBJECTS = json.JSONDecoder(object_pairs_hook=_without_doubles, parse_int=_integer)


def json_object(line: str, where: str) -> Record:
    """Parse a line of JSON as a record. Raises `InputError` for anything but an object."""
    try:
        record = OBJECTS.decode(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(f"{where}: not JSON: {error}") from error
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error
    if not isinstance(record, dict):
        raise InputError(f"{where}: expected an object with a key for each column")
    return cast(Record, record)


READERS: dict[str, Callable[[Path, str], Table]] = {
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _jsonl,
}


def _parquet(path: Path) -> Records:
    optional("pyarrow", "parquet", f"{path}: Parquet")
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
        _header(table.column_names, path)
        records = cast(list[Record], table.to_pylist())
    except InputError:
        raise
    except (ValueError, OSError) as error:  # pyarrow's ArrowInvalid is a ValueError
        raise InputError(f"{path} is not readable as Parquet: {error}") from error
    return named_rows(records, described_features(table.schema.metadata), f"{path}, row")
