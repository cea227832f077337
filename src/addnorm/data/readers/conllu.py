"""CoNLL-U and its kin: which lines are words, by https://universaldependencies.org/format.html."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

Line = tuple[str, str]
"""A line with its place."""

NAMES = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
"""The columns of CoNLL-U; `cupt` and CoNLL 2009 have more."""

ID = re.compile(r"(\d+)(?:([-.])\d+)?", re.ASCII)
"""The number of a word, of a range of words such as `4-5`, or of an empty node such as `8.1`."""

PLUS = "# global.columns ="
"""How a file of CoNLL-U Plus begins, before the names of its columns."""

NO_WORDS = {"-": "ranges of words", ".": "empty nodes"}

BLANKS = " \t"
"""The column separators; U+2028 and the like are part of a word."""


def columns_of(line: str) -> list[str]:
    """The stripped cells of a line; cells between tabs may be empty."""
    if "\t" in line:
        return [cell.strip(BLANKS) for cell in line.split("\t")]
    return [cell for cell in line.split(" ") if cell]


@dataclass(frozen=True)
class ConlluColumns:
    """The columns of a file in which each word has a number, and comments begin with `#`.

    `id_at` is the column of the number; None where the names of CoNLL-U Plus have none.
    """

    n: int
    id_at: int | None = 0
    names: Sequence[str] = NAMES

    def id_of(self, line: str) -> re.Match[str] | None:
        """The id of a line; None where it has none."""
        cells = columns_of(line)
        at = self.id_at
        return None if at is None or at >= len(cells) else ID.fullmatch(cells[at])

    def is_comment(self, line: str) -> bool:
        """Whether a line is a comment: where no id comes first, a word may be `#` too."""
        return line.startswith("#") and (self.id_at == 0 or line.count("\t") != self.n - 1)

    def is_word(self, line: str) -> bool:
        """Whether a line has all columns, with an id in its place."""
        ids = self.id_at is None or self.id_of(line) is not None
        return ids and len(columns_of(line)) == self.n

    def words_alone(self, lines: Sequence[Line]) -> tuple[list[Line], Mapping[str, int]]:
        """The lines of a sentence that are words, or damaged, and the number of others by kind.

        A comment is no word, nor is a range, whose words follow it, nor an empty node.
        """
        words: list[Line] = []
        skipped = Counter[str]()
        for where, line in lines:
            found = self.id_of(line)
            if self.is_comment(line):
                skipped["comments"] += 1
            elif found is not None and found[2]:
                skipped[NO_WORDS[found[2]]] += 1
            else:
                words.append((where, line))
        return words, skipped


def conllu_columns(lines: Sequence[str]) -> ConlluColumns | None:
    """The columns of a CoNLL-U file or its kin; None for other files.

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
    found = ConlluColumns(n, names=NAMES if n >= len(NAMES) else ())
    needed = 0.9 * len(others)
    if n < 3 or sum(map(found.is_word, others)) < needed:
        return None
    counts = sum(_counting(lines, found)) >= needed and bool(found.words_alone(filled)[1])
    return found if n == len(NAMES) or counts else None


def _counting(lines: Sequence[str], columns: ConlluColumns) -> Iterator[bool]:
    """Whether the id of each word, range or empty node is what counting the words gives."""
    for filled, sentence in groupby(lines, key=lambda line: bool(line.strip(BLANKS))):
        n = 0
        for line in sentence if filled else ():
            found = None if columns.is_comment(line) else columns.id_of(line)
            if found is not None:
                n += not found[2]
                yield int(found[1]) == n + (found[2] == "-")
