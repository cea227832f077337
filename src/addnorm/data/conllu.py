"""CoNLL-U: which lines of a file are words, by https://universaldependencies.org/format.html."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

Line = tuple[str, str]
"""A line with its place."""

COLUMNS = 10
"""ID, FORM, LEMMA, UPOS, XPOS, FEATS, HEAD, DEPREL, DEPS and MISC."""

ID = re.compile(r"(\d+)(?:([-.])\d+)?", re.ASCII)
"""The number of a word, of a range of words such as `4-5`, or of an empty node such as `8.1`."""

NO_WORDS = {"-": "ranges of words", ".": "empty nodes"}


def is_conllu(lines: Sequence[str]) -> bool:
    """Whether a file is CoNLL-U: nine in ten of its lines have ten columns with an id in the first.

    Lines that begin with `#` and blank ones do not count: in other files, `#` may be a word.
    """
    others = [line for line in lines if line.strip() and not line.startswith("#")]
    n_words = sum(map(is_word, others))
    return n_words > 0 and n_words >= 0.9 * len(others)


def words_alone(lines: Sequence[Line]) -> tuple[list[Line], Mapping[str, int]]:
    """The lines of a sentence that are words, or damaged, and the number of others by their kind.

    A comment is no word, nor is a range, whose words follow it, nor an empty node.
    """
    words: list[Line] = []
    skipped = Counter[str]()
    for where, line in lines:
        found = ID.fullmatch(line.partition("\t")[0].strip())
        if line.startswith("#"):
            skipped["comments"] += 1
        elif found is not None and found[2]:
            skipped[NO_WORDS[found[2]]] += 1
        else:
            words.append((where, line))
    return words, skipped


def is_word(line: str) -> bool:
    """Whether a line has ten columns with an id in the first."""
    cells = line.split("\t")
    return len(cells) == COLUMNS and ID.fullmatch(cells[0].strip()) is not None
