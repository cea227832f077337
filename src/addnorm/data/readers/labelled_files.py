"""Files with a class or a text each, found in folders, by a pattern, or through a table."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from reprlib import repr as short
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator

from addnorm.config import Probability, config
from addnorm.data.example import is_missing
from addnorm.data.examples import (
    Captioned,
    Clip,
    Corpus,
    Example,
    Image,
    Transcribed,
    signal_digest,
)
from addnorm.data.readers.rows import Row, assemble, class_in
from addnorm.data.readers.saved_dataset import is_saved, saved_splits
from addnorm.data.readers.strings import StringsConfig, with_one_group
from addnorm.data.readers.tables import Record, records_of
from addnorm.data.readers.text_files import base_of, find, given, read_text
from addnorm.errors import InputError, choices

Readable = Path | BytesIO
"""A file, or the bytes of one."""

FileRows = Iterator[tuple[str, Readable | str, str | None]]
"""The location of each file, the file or the reason to skip it, and its label; None if unknown."""

NO_TEXT = "no text"
"""Why a file with an empty text is skipped."""


@config
class LabelledFiles(ABC):
    """The files of `train`, `valid` and `test`, of one medium, each with a class or a text.

    - a folder that has a folder for each class, of its name, with the class's files anywhere below;
      hidden files and those of other kinds are left out and counted;
    - a pattern such as `"clips/*_[0-4].wav"`, or several: `label_pattern` finds the class in the
      name of a file;
    - a table, as in `kind = "table"`, with a row for each file: a Parquet table, or the folder of a
      split that Hugging Face `datasets` saved to disk, may hold the files themselves.

    A text to write stands where a class would, as `labels` says; the model is then an
    encoder–decoder, or a dual encoder that compares pictures with texts, and the recipe has a
    tokenizer.
    """

    suffixes: ClassVar[tuple[str, ...]]
    """The kinds of files, in lower case."""
    column: ClassVar[str]
    """The column of the files in a Parquet table, as Hugging Face `datasets` writes it."""

    root: Path | None = None
    """Where relative paths start; by default `$ADDNORM_DATA`, else the current folder."""
    train: str | tuple[str, ...]
    """The files to learn from: a folder of folders, a pattern or several, or a table."""
    valid: str | tuple[str, ...] | None = None
    """The files to validate on while training."""
    test: str | tuple[str, ...] | None = None
    """The files that training never sees."""
    label_pattern: Annotated[str | None, AfterValidator(with_one_group)] = None
    """A regular expression that finds the class, in its only group, in the name of a file without
    its suffix; by default the class is the name of the file's folder.
    """
    file_column: str | None = None
    """The column of the file, relative to the table; by default `file_name`, and in a Parquet
    table or a saved dataset the medium's, if it has it.
    """
    label_column: str = "label"
    """The column of the class."""
    labels: Literal["class", "text", "text_beside"] = "class"
    """The form of a label: a class; a text to write, in the place of a class; or the text in a
    file of the same name with the suffix .txt.
    """
    strings: StringsConfig | None = None
    """Make strings of files with a class each, whose classes are the text to write; by default
    every file is an example.
    """
    valid_fraction: Probability = 0.0
    """The share of train that is held out for validation, where `valid` is not given."""
    seed: int = 0
    """The seed of the random files that `valid_fraction` holds out."""
    damaged: Literal["refuse", "leave_out"] = "refuse"
    """Whether a file that cannot be read is an error, or left out and counted."""

    @abstractmethod
    def examples(self, file: Readable, where: str, label: str, *, train: bool) -> list[Example]:
        """Read one file as examples.

        Raises `InputError` that begins with `where` for one that is damaged.
        """

    def load(self) -> Corpus:
        """Read every file. Raises `InputError` with the location of the first error."""
        splits = given(self.train, self.valid, self.test)
        self.check_fields(splits.values())
        rows = {split: self.rows(named, train=split == "train") for split, named in splits.items()}
        if self.strings is None:
            return assemble(rows, valid_fraction=self.valid_fraction, seed=self.seed)
        digests = {split: list[str]() for split in rows}
        strings = {
            split: self.strings.rows(split, _noting_digests(files, digests[split]))
            for split, files in rows.items()
        }
        return replace(assemble(strings), pieces=digests)

    def check_fields(self, splits: Iterable[str | tuple[str, ...]]) -> None:
        """Raise `InputError` for fields that exclude each other or apply to no split."""
        tables = [self.is_table(named) for named in splits]
        if self.label_pattern is not None and self.labels == "text_beside":
            raise InputError(
                "data.label_pattern finds labels in the names of files, and data.labels = "
                "'text_beside' reads them from text files: give one of the two"
            )
        for name, is_set in (
            ("label_column", self.label_column != "label"),
            ("file_column", self.file_column is not None),
        ):
            if is_set and not any(tables):
                raise InputError(
                    f"data.{name} names a column of a table, and data.train is not a table: leave "
                    "it out"
                )
        if self.label_pattern is not None and all(tables):
            raise InputError(
                "data.label_pattern finds classes in the names of files, and a table has them in "
                "data.label_column: leave data.label_pattern out"
            )
        if self.strings is not None and self.labels != "class":
            raise InputError(
                "data.strings makes strings of files with a class each: leave out data.labels"
            )
        if self.strings is not None and self.valid_fraction:
            raise InputError(
                "data.strings makes strings within each split: name data.valid instead of "
                "data.valid_fraction"
            )

    def rows(self, named: str | tuple[str, ...], *, train: bool) -> Iterator[Row]:
        """Read each file of a split."""
        for where, file, label in self.files(named):
            if isinstance(file, str):
                yield Row(where, file)
                continue
            assert label is not None
            try:
                _check_file(file, where)
                examples = self.examples(file, where, label, train=train)
            except InputError as error:
                yield Row(where, self.left_out(error, where))
                continue
            if self.labels != "class":
                examples = [_with_text(example) for example in examples]
            path = file if isinstance(file, Path) else None
            yield from (Row(where, example, path) for example in examples)

    def left_out(self, error: InputError, where: str) -> str:
        """Return the reason why a damaged file is skipped.

        Raises the error where such files are refused.
        """
        if self.damaged == "refuse":
            raise error
        return str(error).removeprefix(f"{where}: ").removeprefix(f"{where} ")

    def files(self, named: str | tuple[str, ...]) -> FileRows:
        """Yield the files of a split, by name or in the order of the table."""
        if isinstance(named, str):
            place = base_of(self.root) / named
            if is_saved(place):
                return self.in_table(place)
            if splits := saved_splits(place):
                raise InputError(
                    f"{place} holds saved splits: name the folder of one: {', '.join(splits)}"
                )
            if place.is_dir():
                return self.in_folder(place)
            if self.is_table(named):
                return self.in_table(find(Path(named), self.root))
        patterns = (named,) if isinstance(named, str) else named
        files = {file for pattern in patterns for file in self.matching(pattern)}
        return self.labelled(sorted(files))

    def is_table(self, named: str | tuple[str, ...]) -> bool:
        """Whether a split is a table or a saved dataset, as opposed to a folder or pattern."""
        if isinstance(named, tuple):
            return False
        place = base_of(self.root) / named
        if is_saved(place) or not place.is_dir():
            return _exists(place) or not any(mark in named for mark in "*?[")
        return bool(saved_splits(place))

    def matching(self, pattern: str) -> list[Path]:
        """Return the files that match a pattern. Raises `InputError` if there are none."""
        base = base_of(self.root)
        path = Path(pattern)
        if path.anchor:
            matches = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
        else:
            matches = base.glob(pattern)
        files = [match for match in matches if not match.is_dir()]
        if not files and (base / pattern).is_dir():
            raise InputError(
                f"{base / pattern} is a folder: a folder or a table is named alone, and several "
                "names are patterns of files"
            )
        if not files:
            raise InputError(f"{base / pattern}: no file is found by this pattern")
        return files

    def in_folder(self, folder: Path) -> FileRows:
        """Yield the files of a folder that has a folder for each class.

        Raises `InputError` if there are none.
        """
        files: list[Path] = []
        for file in sorted(files_below(folder)):
            if file.suffix.lower() == ".txt" and self.is_beside(file):
                continue  # the text of an example, whether it is learnt or not
            if reason := self.no_example(file.relative_to(folder)):
                yield str(file), reason, None
            else:
                files.append(file)
        if not files:
            kinds = ", ".join(self.suffixes)
            raise InputError(f"{folder}: no files of a supported kind: {kinds}")
        if self.label_pattern is not None or self.labels == "text_beside":
            yield from self.labelled(files)
            return
        for file in files:
            inner = file.relative_to(folder).parts
            if len(inner) == 1:
                raise InputError(
                    f"{file}: it is in no folder of a class: give data.label_pattern to find its "
                    "class in its name"
                )
            yield str(file), file, inner[0]

    def is_beside(self, text: Path) -> bool:
        """Whether an example has the same name as this text file, apart from the suffix."""
        return any(_exists(text.with_suffix(suffix)) for suffix in self.suffixes)

    def no_example(self, file: Path) -> str | None:
        """Return why a file in a folder is skipped; None if it is an example."""
        if any(part.startswith(".") for part in file.parts):
            return "hidden"
        suffix = file.suffix.lower()
        return None if suffix in self.suffixes else f"of another kind ({suffix or 'no suffix'})"

    def labelled(self, files: Iterable[Path]) -> FileRows:
        """Yield files with labels from their names or from text files next to them.

        Raises `InputError` for a file without one.
        """
        for file in files:
            if self.labels == "text_beside":
                text = _text_beside(file)
                yield str(file), file if text else NO_TEXT, text
                continue
            if self.label_pattern is None:
                yield str(file), file, file.parent.name
                continue
            match = re.search(self.label_pattern, file.stem)
            if match is None or not match[1]:
                raise InputError(
                    f"{file}: data.label_pattern = {self.label_pattern!r} finds no class in "
                    f"{file.stem!r}"
                )
            yield str(file), file, match[1]

    def in_table(self, table: Path) -> FileRows:
        """Yield the files listed in a table. Raises `InputError` for a missing column or file."""
        if self.labels == "text_beside":
            raise InputError(f"{table}: a table has texts in a column: give data.labels = 'text'")
        for where, record in records_of(table):
            if record is None:
                yield where, "empty line", None
                continue
            may_hold_files = table.suffix == ".parquet" or is_saved(table)
            holds_files = may_hold_files and (self.column in record or "file_name" not in record)
            column = self.file_column or (self.column if holds_files else "file_name")
            cell, label = (_cell(record, name, where) for name in (column, self.label_column))
            if is_missing(label):
                yield where, "no label" if self.labels == "class" else NO_TEXT, None
                continue
            name = class_in(label, where)
            try:
                yield where, _file(cell, table, where), name
            except InputError as error:
                yield where, self.left_out(error, where), None


def files_below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield all files in a folder and its subfolders, following links.

    A link to a folder that contains it is not followed. Raises `InputError` for a folder that
    cannot be read.
    """
    above |= {folder.resolve()}
    try:
        entries = [*folder.iterdir()]
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}") from error
    for entry in entries:
        if not entry.is_dir():
            yield entry
        elif entry.resolve() not in above:
            yield from files_below(entry, above)


def _noting_digests(rows: Iterable[Row], digests: list[str]) -> Iterator[Row]:
    """Yield the rows, and append the digest of each image or clip to `digests`."""
    for row in rows:
        if not isinstance(row.content, str):
            digests.append(signal_digest(row.content))
        yield row


def _exists(path: Path | None) -> bool:
    """Whether a file exists; false for a name too long for the file system."""
    try:
        return path is not None and path.is_file()
    except OSError:
        return False


def _check_file(file: Readable, where: str) -> None:
    """Raise `InputError` for a pipe, which may never end, or a broken link."""
    if isinstance(file, Path) and not _exists(file):
        raise InputError(f"{where} is not a file but a pipe, a device, or a link to nothing")


def _text_beside(file: Path) -> str:
    """The text in the `.txt` file next to a file, joined to one line.

    Raises `InputError` without one.
    """
    text_file = find(file.with_suffix(".txt"), Path())
    return " ".join(read_text(text_file).split()) if text_file.stat().st_size else ""


def _with_text(example: Example) -> Example:
    """The same image or clip, with its label as the text to write."""
    match example:
        case Image(pixels, text):
            return Captioned(pixels, text)
        case Clip(frames, text):
            return Transcribed(frames, text)
        case _:
            raise AssertionError(f"{type(example).__name__} is neither an image nor a clip")


def _cell(record: Record, column: str, where: str) -> object:
    if column not in record:
        raise InputError(f"{where}: no column {column!r}.{choices(column, record)}")
    return record[column]


def _file(cell: object, table: Path, where: str) -> Readable:
    """The file in a cell: a path relative to the table, or the contents of a file."""
    match cell if isinstance(cell, dict) else {"path": cell, "bytes": cell}:
        case {"bytes": bytes(content)}:
            return BytesIO(content)
        case {"path": str(path)} if path:
            file = table.parent / path
            if not _exists(file):
                raise InputError(f"{where}: {str(file)[:200]} does not exist")
            return file
        case _:
            raise InputError(f"{where}: expected a file or the path of one, not {short(cell)}")
