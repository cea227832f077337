"""Examples of any kind, from tables with a column for each field."""

from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Literal

from addnorm.config import config
from addnorm.data.example import Example, check_kind, fields_of, is_missing, is_needed, kind_named
from addnorm.data.readers.rows import Row
from addnorm.data.readers.tables import Record, cell_of, records_of
from addnorm.data.readers.text_files import RowFiles, find, given
from addnorm.errors import InputError, choices


@config
class RecordsConfig(RowFiles):
    """Examples of any kind, also of your own, in tables: every field is a column of its name.

    The suffix says how to read a table, as with `kind = "table"`. `columns` names the columns
    where they have other names than the fields.
    """

    kind: Literal["records"] = "records"
    example: str
    """The kind of example: the name of its class, such as `QuestionAnswer`, or `module:Class`."""
    columns: dict[str, str] = field(default_factory=dict[str, str])
    """The column of a field; a dotted name reaches into a nested column, as in
    `columns = { answers = "answers.text" }`.
    """
    train: Path
    """The table to learn from: `.tsv`, `.csv`, `.jsonl` or `.parquet`."""
    valid: Path | None = None
    """The table to validate on while training."""
    test: Path | None = None
    """The table that training never sees."""

    @property
    def kind_of_example(self) -> type[Example]:
        """The class of the examples. Raises `InputError` if there is none of this name."""
        return kind_named(self.example)

    def rows(self) -> dict[str, Iterable[Row]]:
        """Return the rows of each given split."""
        kind = self.kind_of_example
        check_kind(kind)
        names = [field.name for field in fields_of(kind)]
        for name in self.columns:
            if name not in names:
                raise InputError(
                    f"data.columns.{name}: {self.example} has no such field.{choices(name, names)}"
                )
        splits = given(self.train, self.valid, self.test)
        return {split: self.table(path, kind, names) for split, path in splits.items()}

    def table(self, path: Path, kind: type[Example], names: list[str]) -> Iterator[Row]:
        """Yield the rows of one file; a field without a column keeps its default."""
        for where, record in records_of(find(path, self.root), self.encoding):
            yield Row(
                where,
                "empty line" if record is None else self.example_of(kind, names, record, where),
            )

    def example_of(
        self, kind: type[Example], names: list[str], record: Record, where: str
    ) -> Example | str:
        """The example in a row, or which needed field or target it lacks.

        Raises `InputError` for what `Example.of` refuses.
        """
        cells = {
            name: cell_of(record, self.columns.get(name, name), where)
            for name in names
            if name in self.columns or name in record
        }
        needed = [field.name for field in fields_of(kind) if is_needed(field)]
        empty = [name for name in needed if name in cells and is_missing(cells[name])]
        if empty:
            return f"empty {' and '.join(empty)}"
        try:
            example = kind.of(cells, where)
        except InputError as error:
            text = str(error)
            raise InputError(text if text.startswith(where) else f"{where}: {text}") from error
        if kind.targets and all(is_missing(cells.get(name)) for name in kind.targets):
            return f"no {' or '.join(kind.targets)}"
        return example
