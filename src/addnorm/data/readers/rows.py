"""Building a corpus from rows: reporting skipped rows, checking labels, holding out."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from random import Random

from addnorm.data.examples import Corpus, Example, Report, labels_of
from addnorm.data.readers.cells import check_one_type
from addnorm.data.readers.incomplete import lack
from addnorm.data.tokenizing.lower_case import lowered
from addnorm.errors import InputError, choices

Placed = tuple[str, Example]
"""An example with its location."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a data source: its location, and its example or the reason to skip it.

    `file` is the image or the clip that the example was read from, where that is a file of its own;
    `skipped` counts lines that belong to the row and say nothing of it, by their kind.
    """

    where: str
    content: Example | str
    file: Path | None = None
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])


def assemble(
    rows: Mapping[str, Iterable[Row]],
    lowercase: bool = False,
    valid_fraction: float = 0.0,
    seed: int = 0,
) -> Corpus:
    """Build a corpus from the rows of each split, holding out a random part of train if requested.

    Raises `InputError` if a split has no usable row, if validation rows are both given and to be
    held out, or if a label occurs only in valid or test.
    """
    if valid_fraction and "valid" in rows:
        raise InputError("give either valid or valid_fraction, not both")
    placed: dict[str, list[Placed]] = {}
    reports: dict[str, Report] = {}
    for split, found in rows.items():
        placed[split], reports[split] = _account(split, found)
    _check_labels(placed)
    if valid_fraction:
        placed["train"], held = _hold_out(placed["train"], valid_fraction, seed)
        report = reports["train"]
        n = len(held)
        reports["train"] = replace(report, read=report.read - n, used=report.used - n)
        placed["valid"], reports["valid"] = held, Report(n, n)
    examples = {
        split: [lowered(example) if lowercase else example for _, example in some]
        for split, some in placed.items()
    }
    return Corpus(
        train=examples["train"],
        valid=examples.get("valid", ()),
        test=examples.get("test", ()),
        reports={split: reports[split] for split in ("train", "valid", "test") if split in reports},
        lowercase=lowercase,
    )


def _account(split: str, rows: Iterable[Row]) -> tuple[list[Placed], Report]:
    used: list[Placed] = []
    left_out: dict[str, list[str]] = {}
    skipped = Counter[str]()
    for row in rows:
        skipped.update(row.skipped)
        content = row.content
        why = content if isinstance(content, str) else lack(content)
        if why is not None:
            left_out.setdefault(why, []).append(row.where)
        elif not isinstance(content, str):
            used.append((row.where, content))
    n = len(used) + sum(map(len, left_out.values()))
    report = Report(n, len(used), left_out, skipped=skipped)
    if not used:
        raise InputError(f"{split} has no usable row: {report}")
    return used, report


def _check_labels(placed: Mapping[str, list[Placed]]) -> None:
    """Raise `InputError` for classes of several types, and for one that training never sees."""
    every = chain.from_iterable(placed.values())
    check_one_type((where, label) for where, one in every for label in labels_of(one))
    known = {label for _, example in placed["train"] for label in labels_of(example)}
    for where, example in (*placed.get("valid", ()), *placed.get("test", ())):
        for label in labels_of(example):
            if label not in known:
                raise InputError(
                    f"{where}: the label {label!r} never occurs in the training data."
                    f"{choices(label, sorted(known))}"
                )


def _hold_out(rows: list[Placed], share: float, seed: int) -> tuple[list[Placed], list[Placed]]:
    n = round(share * len(rows))
    if not 0 < n < len(rows):
        raise InputError(
            f"valid_fraction={share} of {len(rows)} training rows leaves a split empty"
        )
    held = set(Random(f"hold out {seed}").sample(range(len(rows)), n))
    return (
        [row for i, row in enumerate(rows) if i not in held],
        [row for i, row in enumerate(rows) if i in held],
    )
