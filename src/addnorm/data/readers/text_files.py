"""Text files, and data sources made of them: text, lines, and parallel lines."""

import gzip
import os
import zlib
from abc import ABC, abstractmethod
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator

from addnorm.config import Probability, config
from addnorm.data.examples import Corpus, Labelled, Pair, Text
from addnorm.data.readers.rows import Placed, Row, assemble
from addnorm.data.readers.saved_dataset import is_saved
from addnorm.errors import InputError, nearest
from addnorm.files import check_regular, nearest_encoding

T = TypeVar("T")

ROOT = "ADDNORM_DATA"
"""The environment variable that names the base folder of relative data paths."""


def base_of(root: Path | None) -> Path:
    """Return where relative paths start: `root`, else $ADDNORM_DATA, else the current folder."""
    return root or Path(os.environ.get(ROOT, ""))


def find(path: Path, root: Path | None = None) -> Path:
    """Resolve `path` relative to `root`, else to $ADDNORM_DATA, else to the current folder.

    The result is a file, or the folder of a dataset that was saved to disk. Raises `InputError`,
    with the nearest name in the folder, if there is no such file.
    """
    full = base_of(root) / path
    if full.is_file() or is_saved(full):
        return full
    if full.is_dir():
        raise InputError(f"{full} is a folder, not a file")
    if full.exists():
        check_regular(full)
    folder = full.parent
    if not folder.is_dir():
        raise InputError(f"{full} does not exist, nor does its folder.{_hint(root)}")
    names = [entry.name for entry in folder.iterdir()]
    raise InputError(f"{full} does not exist.{nearest(full.name, names)}{_hint(root)}")


def _hint(root: Path | None) -> str:
    if root is not None or ROOT in os.environ:
        return ""
    return f" Relative paths start at data.root, else at ${ROOT}, else here."


UNPACKED = 2**26
"""The size in bytes to which any .gz file may unpack; larger files may unpack to more."""


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, decompressed if its name ends in .gz."""
    try:
        return _unpacked(path) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is a damaged or truncated gzip file: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _unpacked(path: Path) -> bytes:
    """Decompress a .gz file. Raises `InputError` for a decompression bomb."""
    most = max(UNPACKED, 100 * path.stat().st_size)
    with gzip.open(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{path} unpacks to more than {most:,} bytes, a hundred times its size")
    return data


def read_text(path: Path, encoding: str = "utf-8") -> str:
    r"""Return the text of a file, with "\n" for "\r\n", without a byte-order mark.

    Raises `InputError` for an empty file, a NUL, and bytes that are invalid in the encoding.
    """
    text = decoded(read_bytes(path), str(path), encoding).removeprefix("\ufeff")
    if not text:
        raise InputError(f"{path} is empty")
    return text


def decoded(data: bytes, name: str, encoding: str | None = None, first_line: int = 1) -> str:
    r"""Decode the bytes of a file, with "\n" for "\r\n".

    `encoding` is None where a file must be UTF-8. Raises `InputError`, with the line, for a NUL,
    and for bytes that are invalid in the encoding.
    """
    fixed, encoding = encoding is None, encoding or "utf-8"
    try:
        text = data.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + first_line
        other = "utf-16" if data[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "latin-1"
        advice = (
            f"convert it, e.g. by `iconv -f {other} -t utf-8`"
            if fixed
            else f'name it, e.g. encoding = "{other}"'
        )
        raise InputError(
            f"{name}:{line}: byte 0x{data[error.start]:02x} is not {encoding}. "
            f"If the file is in another encoding, {advice}"
        ) from error
    except (LookupError, ValueError) as error:
        raise InputError(
            f"{name}: encoding {encoding!r} is unknown.{nearest_encoding(encoding)} Valid: utf-8, "
            "latin-1, and Python's other encodings"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + first_line
        raise InputError(
            f"{name}:{line}: a NUL: the file is not text, or its encoding is not {encoding}"
        )
    return text


def lines_of(text: str) -> list[str]:
    r"""Split a text into lines at "\n" only, not at U+2028, U+0085 and the like."""
    return text.removesuffix("\n").split("\n")


def given(train: T, valid: T | None, test: T | None) -> dict[str, T]:
    """Return those splits that are not None, by name."""
    splits = {"train": train, "valid": valid, "test": test}
    return {name: value for name, value in splits.items() if value is not None}


@config
class Files(ABC):
    """The fields and methods shared by sources of text files."""

    root: Path | None = None
    """Where relative paths start; by default `$ADDNORM_DATA`, else the current folder."""
    encoding: str = "utf-8"
    """The character encoding of all files, by its Python name, such as `latin-1`."""
    lowercase: bool = False
    """Put the text in lower case; labels and tags keep theirs."""
    valid_fraction: Probability = 0.0
    """The share of train that is held out for validation, where `valid` names no file."""

    @abstractmethod
    def load(self) -> Corpus:
        """Read and check every file. Raises `InputError` with file and line of the first error."""

    def read(self, path: Path, *, lines: bool = True) -> tuple[Path, str]:
        r"""Return the resolved path and the text of a file, made of `lines` or one document.

        Raises `InputError` for lines that end with \r.
        """
        full = find(path, self.root)
        text = read_text(full, self.encoding)
        if lines and text.count("\r") > text.count("\n"):
            raise InputError(
                rf"{full}: its lines end with \r, and lines end with \n or \r\n: convert it, "
                rf"with `tr '\r' '\n' < {path.name} > new` for example"
            )
        return full, text

    def lines(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yield the location (`file:line`) and text of every line of a file."""
        full, text = self.read(path)
        return ((f"{full}:{n}", line) for n, line in enumerate(lines_of(text), 1))


@config
class TextConfig(Files):
    """Documents for a language model: whole files, lines, or paragraphs (between empty lines).

    `valid_fraction` and `test_fraction` hold out the *last* characters of train, in this order; for
    lines and paragraphs the cut moves on to where one ends.
    """

    kind: Literal["text"] = "text"
    train: Path
    """The text file to learn from; `.gz` is unpacked."""
    valid: Path | None = None
    """The text file to validate on while training."""
    test: Path | None = None
    """The text file that training never sees."""
    test_fraction: Probability = 0.0
    """The share of train, its last characters, that is held out for testing."""
    unit: Literal["file", "line", "paragraph"] = "file"
    """The unit of a document: the whole file, a line, or a paragraph between empty lines."""

    def load(self) -> Corpus:
        """Read and check every file, and hold out the end of train if requested."""
        paths = given(self.train, self.valid, self.test)
        fractions = {"valid": self.valid_fraction, "test": self.test_fraction}
        for split, fraction in fractions.items():
            if fraction and split in paths:
                raise InputError(f"give either {split} or {split}_fraction, not both")
        if sum(fractions.values()) >= 1:
            raise InputError(
                f"valid_fraction = {self.valid_fraction} and test_fraction = {self.test_fraction} "
                "leave nothing to train on: their sum must be less than 1"
            )
        lines = self.unit != "file"
        path, text = self.read(paths.pop("train"), lines=lines)
        others = {k: self.units(*self.read(other, lines=lines)) for k, other in paths.items()}
        rows = {"train": self.units(path, text), **others}
        if any(fractions.values()):
            start = self.end_of_unit(text, 1 - sum(fractions.values()))
            stop = self.end_of_unit(text, 1 - self.test_fraction)
            rows["train"] = self.units(path, text, 0, start)
            if self.valid_fraction:
                rows["valid"] = self.units(path, text, start, stop)
            if self.test_fraction:
                rows["test"] = self.units(path, text, stop)
        return assemble(rows, self.lowercase)

    def end_of_unit(self, text: str, share: float) -> int:
        """Return the number of characters in this share of the text, rounded up to whole units."""
        n = int(share * len(text))
        mark = {"file": "", "line": "\n", "paragraph": "\n\n"}[self.unit]
        end = text.find(mark, max(n - len(mark), 0))
        return len(text) if end < 0 else end + len(mark)

    def units(
        self, path: Path, text: str, start: int = 0, stop: int | None = None
    ) -> Iterator[Row]:
        """Yield the documents between two character offsets of a file's text."""
        part = text[start:stop]
        first_line = text.count("\n", 0, start) + 1
        if self.unit == "file":
            yield Row(f"{path}:{first_line}", Text(part))
            return
        numbered = enumerate(lines_of(part), first_line)
        if self.unit == "line":
            for n, line in numbered:
                yield Row(f"{path}:{n}", Text(line) if line.strip() else "empty line")
        else:
            for filled, group in groupby(numbered, key=lambda row: bool(row[1].strip())):
                lines = list(group)
                if filled:
                    paragraph = "\n".join(line for _, line in lines)
                    yield Row(f"{path}:{lines[0][0]}", Text(paragraph))


@config
class RowFiles(Files, ABC):
    """Files of independent rows: `valid_fraction` holds out a random share of train, by `seed`."""

    seed: int = 0
    """The seed of the random rows that `valid_fraction` holds out."""

    @abstractmethod
    def rows(self) -> Mapping[str, Iterable[Row | Placed]]:
        """Return the rows of each given split."""

    def load(self) -> Corpus:
        """Read and check every file, and hold out part of train if requested."""
        return assemble(self.rows(), self.lowercase, self.valid_fraction, self.seed)


@config
class ParallelConfig(RowFiles):
    """Translation: two files, line `n` of one the translation of line `n` of the other.

    Files of different lengths are an error; a pair with an empty side is left out and reported.
    """

    kind: Literal["parallel"] = "parallel"
    train: tuple[Path, Path]
    """The files to learn from: source sentences, and their translations line by line."""
    valid: tuple[Path, Path] | None = None
    """The two files to validate on while training."""
    test: tuple[Path, Path] | None = None
    """The two files that training never sees."""

    def rows(self) -> Mapping[str, Iterable[Row | Placed]]:
        """Return the rows of each given split."""
        return {k: self.pairs(*v) for k, v in given(self.train, self.valid, self.test).items()}

    def pairs(self, source: Path, target: Path) -> Iterator[Row]:
        """Yield the pairs of two parallel files."""
        sources, targets = list(self.lines(source)), list(self.lines(target))
        if len(sources) != len(targets):
            longer = max(sources, targets, key=len)
            raise InputError(
                f"{source} has {len(sources):,} lines and {target} has {len(targets):,}: "
                f"{longer[min(len(sources), len(targets))][0]} has no partner"
            )
        for (here, left), (there, right) in zip(sources, targets, strict=True):
            only_target_empty = left.strip() and not right.strip()
            yield Row(there if only_target_empty else here, Pair(left, right))


def _at_least_one(files: Path | tuple[Path, ...]) -> Path | tuple[Path, ...]:
    if not files:
        raise ValueError("names no file: name one at least")
    return files


OneOrMoreFiles = Annotated[Path | tuple[Path, ...], AfterValidator(_at_least_one)]
"""A file, or several that are read one after another."""


def one_after_another(
    files: OneOrMoreFiles, read: Callable[[Path], Iterable[Row]]
) -> Iterator[Row]:
    """Yield the rows of one file, or of several in turn."""
    return chain.from_iterable(map(read, files if isinstance(files, tuple) else (files,)))


@config
class LinesConfig(RowFiles):
    """Classification: `label text` on each line, or `text label` with `label_first=False`."""

    kind: Literal["lines"] = "lines"
    train: OneOrMoreFiles
    """The file of labelled lines to learn from; or several, one after another."""
    valid: Path | None = None
    """The file of labelled lines to validate on while training."""
    test: Path | None = None
    """The file of labelled lines that training never sees."""
    separator: str = " "
    """The separator between label and text."""
    label_first: bool = True
    """Whether the label stands before the text, or after it."""

    def __post_init__(self) -> None:
        if not self.separator:
            raise ValueError("separator is empty: give the text between label and text of a line")

    def rows(self) -> Mapping[str, Iterable[Row | Placed]]:
        """Return the rows of each given split."""
        train = one_after_another(self.train, self.labelled)
        valid, test = (path and self.labelled(path) for path in (self.valid, self.test))
        return given(train, valid, test)

    def labelled(self, path: Path) -> Iterator[Row]:
        """Yield the examples of one file."""
        for where, line in self.lines(path):
            if self.label_first:
                label, separator, text = line.partition(self.separator)
            else:
                text, separator, label = line.rpartition(self.separator)
            if separator:
                yield Row(where, Labelled(text, label.strip()))
            else:
                yield Row(where, "a line without the separator" if line.strip() else "empty line")
