"""From rows as they were read to a corpus: leave out and report, check the labels, hold out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from random import Random

from addnorm.data.examples import Corpus, Example, Labelled, Pair, Report, Tagged, Text, labels_of
from addnorm.errors import InputError, nearest


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a source: where it stands, and its example or the reason to leave it out."""

    where: str
    content: Example | str


def assemble(
    rows: Mapping[str, Iterable[Row]],
    lowercase: bool = False,
    valid_fraction: float = 0.0,
    seed: int = 0,
) -> Corpus:
    """Make a corpus of the rows of each split, holding out a random share of train for validation.

    Raises `InputError` when a split has no usable row, when validation rows are both given and to be
    held out, and when a label occurs in valid or test only.
    """
    if valid_fraction and "valid" in rows:
        raise InputError("give either valid or valid_fraction, not both")
    splits: dict[str, list[Example]] = {}
    reports: dict[str, Report] = {}
    known: set[str] = set()
    for split, found in rows.items():
        used = list[tuple[str, Example]]()
        ...
