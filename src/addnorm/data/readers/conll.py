"""Tagged words in columns: CoNLL files, and CoNLL-U with its kin.

Which lines of CoNLL-U are words: https://universaldependencies.org/format.html.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal

from addnorm.config import config
from addnorm.data.examples import Tagged
from addnorm.data.readers.rows import Row
from addnorm.data.readers.text_files import OneOrMoreFiles, RowFiles, given, one_after_another
from addnorm.errors import InputError

BLANKS = " \t"
"""The column separators; U+2028 and the like are part of a word."""


def columns_of(line: str) -> list[str]:
    """Return the stripped cells of a line; between tabs, a cell may be empty."""
    if "\t" in line:
        return [cell.strip(BLANKS) for cell in line.split("\t")]
    return [cell for cell in line.split(" ") if cell]


@config
class ConllConfig(RowFiles):
    """Tagging: a word and its tag on each line, in columns; a blank line ends a sentence.

    Columns are separated by tabs where a line has one, else by spaces; negative columns count from
    the end. A sentence with a line that lacks a column, and a `-DOCSTART-`, is left out and
    reported. Of a CoNLL-U file, which has the number of each word in the first of its columns, and
    of its kin such as CoNLL-U Plus, comments, ranges such as `4-5` and empty nodes such as `8.1`
    are skipped and counted.
    """

    kind: Literal["conll"] = "conll"
    train: OneOrMoreFiles
    """The file of tagged words to learn from; or several, one after another."""
    valid: Path | None = None
    """The file of tagged words to validate on while training."""
    test: Path | None = None
    """The file of tagged words that training never sees."""
    token_column: int = 0
    """The column of the word, counted from 0; negative from the last."""
    tag_column: int = -1
    """The column of the tag, counted from 0; negative from the last."""

    def rows(self) -> dict[str, Iterable[Row]]:
        """Return the rows of each given split."""
        train = one_after_another(self.train, self.sentences)
        valid, test = (path and self.sentences(path) for path in (self.valid, self.test))
        return given(train, valid, test)

    def sentences(self, path: Path) -> Iterator[Row]:
        """Yield the sentences of one file, located by their first lines.

        Raises `InputError` where the words of a CoNLL-U file would be their numbers.
        """
        lines = list(self.lines(path))
        conllu = conllu_columns([line for _, line in lines])
        if conllu is not None:
            self.check_words(path, conllu)
        for filled, group in groupby(lines, key=lambda row: bool(row[1].strip(BLANKS))):
            if filled:
                sentence = list(group)
                yield self.sentence(sentence) if conllu is None else self.numbered(sentence, conllu)

    def check_words(self, path: Path, columns: "ConlluColumns") -> None:
        """Raise `InputError` if the word column of a CoNLL-U file holds its word numbers."""
        if columns.id_at is None or self.token_column % columns.n != columns.id_at:
            return
        which = "first" if columns.id_at == 0 else "ID"
        at = {name: n for n, name in enumerate(columns.names) if n < columns.n}
        word = f" = {at['FORM']}" if "FORM" in at else ", the column of the word"
        tags = ", and for the universal part-of-speech tags data.tag_column = "
        raise InputError(
            f"{path}: CoNLL-U, whose {which} column numbers the words: give data.token_column"
            f"{word}{tags + str(at['UPOS']) if 'UPOS' in at else ''}"
        )

    def numbered(self, lines: list["Line"], columns: "ConlluColumns") -> Row:
        """Return one sentence of a CoNLL-U file as a row."""
        words, skipped = columns.words_alone(lines)
        broken = next((where for where, line in words if not columns.is_word(line)), None)
        if broken is not None:
            n = "ten" if columns.n == 10 else f"{columns.n}"
            row = Row(broken, f"a line without an id and {n} columns")
        else:
            row = self.sentence(words) if words else Row(lines[0][0], "comments without words")
        return row._replace(skipped=skipped)

    def sentence(self, lines: list["Line"]) -> Row:
        """Return one sentence as a row at its first line, or at its first invalid line."""
        rows = [columns_of(line) for _, line in lines]
        if len(rows) == 1 and rows[0][0] == "-DOCSTART-":
            return Row(lines[0][0], "document mark")
        for (where, _), cells in zip(lines, rows, strict=True):
            if not self.complete(cells):
                return Row(where, "a line without word and tag")
        tokens = tuple(cells[self.token_column] for cells in rows)
        tags = tuple(cells[self.tag_column] for cells in rows)
        return Row(lines[0][0], Tagged(tokens, tags))

    def complete(self, cells: list[str]) -> bool:
        """Whether a line has a word and a tag, in different columns and not empty."""
        n = len(cells)
        columns = [c + n if c < 0 else c for c in (self.token_column, self.tag_column)]
        return len({*columns}) == 2 and all(0 <= c < n and cells[c] for c in columns)


Line = tuple[str, str]
"""A line with its place."""

NAMES = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
"""The columns of CoNLL-U; `cupt` and CoNLL 2009 have more."""

ID = re.compile(r"(\d+)(?:([-.])\d+)?", re.ASCII)
"""The number of a word, of a range of words such as `4-5`, or of an empty node such as `8.1`."""

PLUS = "# global.columns ="
"""How a file of CoNLL-U Plus begins, before the names of its columns."""

NO_WORDS = {"-": "ranges of words", ".": "empty nodes"}


@dataclass(frozen=True)
class ConlluColumns:
    """The columns of a file that numbers its words and starts comments with `#`.

    `id_at` is the column of the number; None where the names of CoNLL-U Plus have none.
    """

    n: int
    id_at: int | None = 0
    names: Sequence[str] = NAMES

    def id_of(self, line: str) -> re.Match[str] | None:
        """Return the parsed word number of a line; None if it has none."""
        cells = columns_of(line)
        at = self.id_at
        return None if at is None or at >= len(cells) else ID.fullmatch(cells[at])

    def is_comment(self, line: str) -> bool:
        """Whether a line is a comment; `#` may be a word unless the number comes first."""
        return line.startswith("#") and (self.id_at == 0 or line.count("\t") != self.n - 1)

    def is_word(self, line: str) -> bool:
        """Whether a line has all columns and a word number in its column."""
        has_id = self.id_at is None or self.id_of(line) is not None
        return has_id and len(columns_of(line)) == self.n

    def words_alone(self, lines: Sequence[Line]) -> tuple[list[Line], Mapping[str, int]]:
        """Return the lines of a sentence that hold words or are damaged, and count the others.

        Comments, ranges (whose words follow) and empty nodes are not words; they are counted by
        their kind.
        """
        words: list[Line] = []
        skipped = Counter[str]()
        for where, line in lines:
            id_match = self.id_of(line)
            if self.is_comment(line):
                skipped["comments"] += 1
            elif id_match is not None and id_match[2]:
                skipped[NO_WORDS[id_match[2]]] += 1
            else:
                words.append((where, line))
        return words, skipped


def conllu_columns(lines: Sequence[str]) -> ConlluColumns | None:
    """Return the columns of a CoNLL-U or similar file; None for other files.

    CoNLL-U Plus names them in its first line. Otherwise nine in ten lines have an id in the first
    of ten columns; or of another number of columns, three or more, and the ids count the words of
    each sentence, with a comment, a range or an empty node somewhere. Lines that begin with `#` and
    blank ones do not count: in other files, `#` may be a word.
    """
    if lines and lines[0].startswith(PLUS):
        names = lines[0].removeprefix(PLUS).split()
        return ConlluColumns(len(names), names.index("ID") if "ID" in names else None, names)
    filled = [(line, line) for line in lines if line.strip(BLANKS)]
    others = [line for line, _ in filled if not line.startswith("#")]
    if not others:
        return None
    n = Counter(len(columns_of(line)) for line in others).most_common(1)[0][0]
    columns = ConlluColumns(n, names=NAMES if n >= len(NAMES) else ())
    needed = 0.9 * len(others)
    if n < 3 or sum(map(columns.is_word, others)) < needed:
        return None
    ids_count_words = sum(_counting(lines, columns)) >= needed
    counts = ids_count_words and bool(columns.words_alone(filled)[1])
    return columns if n == len(NAMES) or counts else None


def _counting(lines: Sequence[str], columns: ConlluColumns) -> Iterator[bool]:
    """Yield for each word number whether it is the one expected by counting the words."""
    for filled, sentence in groupby(lines, key=lambda line: bool(line.strip(BLANKS))):
        n = 0
        for line in sentence if filled else ():
            id_match = None if columns.is_comment(line) else columns.id_of(line)
            if id_match is not None:
                n += not id_match[2]
                yield int(id_match[1]) == n + (id_match[2] == "-")
