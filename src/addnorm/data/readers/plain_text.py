"""Corpora in plain files: text, parallel lines, labelled lines, CoNLL columns."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator

from addnorm.config import Probability, config
from addnorm.data.examples import Corpus, Labelled, Pair, Text
from addnorm.data.readers.rows import Row, assemble
from addnorm.data.readers.text_files import Files, given, lines_of
from addnorm.errors import InputError


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
        """Return the characters in this fraction of the text, rounded up to whole units."""
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
    def rows(self) -> dict[str, Iterable[Row]]:
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

    def rows(self) -> dict[str, Iterable[Row]]:
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
    """Yield the rows of each file."""
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

    def rows(self) -> dict[str, Iterable[Row]]:
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
