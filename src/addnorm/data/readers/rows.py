"""Building a corpus from rows: skips incomplete ones, checks labels, holds out examples."""

import datetime
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from decimal import Decimal
from itertools import chain, compress
from pathlib import Path
from random import Random
from reprlib import repr as short
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from addnorm.data.conversation import check_text
from addnorm.data.example import has_signals, plain
from addnorm.data.example_columns import ExampleColumns, chosen, joined
from addnorm.data.examples import (
    NOT_FINITE,
    Chat,
    Corpus,
    Example,
    Report,
    have_all_texts,
    labels_of,
    signal_of,
)
from addnorm.data.tokenizing.word_splitting import lower_case
from addnorm.errors import InputError, choices


class _Typed(str):
    """The name of a class that keeps the type of its cell, for cells that are not text."""

    __slots__ = ()


class Truth(_Typed):
    """The name of a boolean class, `True` or `False`."""

    __slots__ = ()


class Integer(_Typed):
    """The name of an integer class."""

    __slots__ = ()


class FloatingPoint(_Typed):
    """The name of a floating-point class, such as `1.0`."""

    __slots__ = ()


class DecimalNumber(_Typed):
    """The name of a decimal class, such as `1.00`."""

    __slots__ = ()


TYPES: dict[type[str], str] = {
    Truth: "a truth value",
    Integer: "an integer",
    FloatingPoint: "a floating-point number",
    DecimalNumber: "a decimal number",
}


def class_in(cell: object, where: str) -> str:
    """Return the name of the class in a cell, with the cell's type if it is not text.

    A text and a number of the same spelling are one class. Raises `InputError` for a list, an
    object or bytes, and for invalid text.
    """
    match value := plain(cell):
        case str():
            check_text(value, where)
            return value.strip()
        case bool():
            return Truth(value)
        case int():
            return Integer(value)
        case float():
            return FloatingPoint(value + 0.0)  # -0.0 is 0.0
        case Decimal():
            return DecimalNumber(value)
        case datetime.date() | datetime.time():
            return str(value)
        case _:
            raise InputError(
                f"{where}: expected a class, which is a text, a number or a truth value, not "
                f"{short(cell)}"
            )


def check_one_type(classes: Iterable[tuple[str, str]]) -> None:
    """Raise `InputError` for classes of different types, since 1, 1.0 and true would be three.

    `classes` are places and names.
    """
    first: tuple[str, _Typed] | None = None
    for where, name in classes:
        if not isinstance(name, _Typed):
            continue
        if first is None:
            first = where, name
        if type(name) is not type(first[1]):
            raise InputError(
                f"{where}: the class {name} is {TYPES[type(name)]}, and {first[1]} at {first[0]} "
                f"is {TYPES[type(first[1])]}: write the classes of a column in one type"
            )


LARGEST = float(np.finfo(np.float32).max)
"""The largest number that models hold: they compute in float32."""


def number_of(cell: object) -> float | None:
    """Return the number in a cell, infinity if it is too large; None if there is no number.

    Truth values are not numbers here, nor are Python's own spellings such as `1_000`.
    """
    if isinstance(cell, bool) or not isinstance(cell, int | float | str | Decimal):
        return None
    if isinstance(cell, str) and "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None
    except OverflowError:
        return float("inf")


def lack(example: Example) -> str | None:
    """Return the missing part of an example, such as "empty text" or "no label"; None if none."""
    return example.lack() or _lack_of_numbers(example)


def lacks(examples: Sequence[Example]) -> Sequence[str | None]:
    """Return the missing part of each example (see `lack`)."""
    if isinstance(examples, ExampleColumns):
        return [None] * len(examples)
    kinds = {*map(type, examples)}
    if len(kinds) == 1 and have_all_texts(kinds.pop(), examples):
        return [None] * len(examples)
    return [*map(lack, examples)]


def _lack_of_numbers(example: Example) -> str | None:
    signal = signal_of(example)
    if signal is None or not signal.is_floating_point() or bool(torch.isfinite(signal).all()):
        return None
    return NOT_FINITE


def complete(corpus: Corpus) -> Corpus:
    """Return the corpus without incomplete examples, which are counted in its reports.

    Readers leave such rows out, so this concerns a corpus that was put together in Python. Raises
    `InputError` if no example of a split is left.
    """
    splits: Any = {}
    reports, places = {**corpus.reports}, {**corpus.places}
    for split, examples in corpus.splits.items():
        reasons = lacks(examples)
        if not any(reasons):
            continue
        left_out: dict[str, list[str]] = {}
        for n, reason in enumerate(reasons, 1):
            if reason is not None:
                left_out.setdefault(reason, []).append(f"{split} example {n}")
        used = chosen(examples, [reason is None for reason in reasons])
        before = reports.get(split, Report(len(examples), len(examples)))
        reports[split] = replace(
            before,
            used=before.used - len(examples) + len(used),
            left_out={**before.left_out, **left_out},
        )
        if not used:
            raise InputError(f"{split} has no example that is complete: {reports[split]}")
        splits[split] = used
        if split in places:
            pairs = zip(places[split], reasons, strict=True)
            places[split] = [place for place, reason in pairs if reason is None]
    return replace(corpus, **splits, reports=reports, places=places) if splits else corpus


class Placed(NamedTuple):
    """Complete examples, and the location of each."""

    places: Sequence[str]
    examples: Sequence[Example]


class Row(NamedTuple):
    """One row of a data source: its location, with its example or the reason to skip it.

    `file` is the image or the clip that the example was read from, where that is a file of its own;
    `skipped` counts lines of the row that are not part of its example, by their kind.
    """

    where: str
    content: Example | str
    file: Path | None = None
    skipped: Mapping[str, int] = MappingProxyType({})


def assemble(
    rows: Mapping[str, Iterable[Row | Placed]],
    lowercase: bool = False,
    valid_fraction: float = 0.0,
    seed: int = 0,
) -> Corpus:
    """Build a corpus from the rows of each split, skipping incomplete examples (see `lack`).

    `valid_fraction` holds out a random part of train. Raises `InputError` if a split has no usable
    row, if validation rows are both given and to be held out, or if a label occurs only in valid or
    test.
    """
    if valid_fraction and "valid" in rows:
        raise InputError("give either valid or valid_fraction, not both")
    placed: dict[str, Placed] = {}
    reports: dict[str, Report] = {}
    for split, split_rows in rows.items():
        placed[split], reports[split] = _account(split, split_rows)
    _check_labels(placed)
    if valid_fraction:
        placed["train"], held_out = _hold_out(placed["train"], valid_fraction, seed)
        report = reports["train"]
        n = len(held_out.examples)
        reports["train"] = replace(report, read=report.read - n, used=report.used - n)
        placed["valid"], reports["valid"] = held_out, Report(n, n)
    examples = {
        split: all_lowered(part.examples) if lowercase else part.examples
        for split, part in placed.items()
    }
    from_files = has_signals(type(examples["train"][0]).medium)
    return Corpus(
        train=examples["train"],
        valid=examples.get("valid", ()),
        test=examples.get("test", ()),
        reports={split: reports[split] for split in ("train", "valid", "test") if split in reports},
        places={split: part.places for split, part in placed.items()} if from_files else {},
        lowercase=lowercase,
    )


def _account(split: str, rows: Iterable[Row | Placed]) -> tuple[Placed, Report]:
    places: list[str] = []
    parts: list[Sequence[Example]] = []
    left_out: dict[str, list[str]] = {}
    skipped = Counter[str]()
    read = [*rows]
    alone = (row.content for row in read if isinstance(row, Row))
    lacking = iter(lacks([content for content in alone if not isinstance(content, str)]))
    for row in read:
        if isinstance(row, Placed):
            places += row.places
            parts.append(row.examples)
            continue
        where, content, _, skips = row
        if skips:
            skipped.update(skips)
        reason = content if isinstance(content, str) else next(lacking)
        if reason is not None:
            left_out.setdefault(reason, []).append(where)
        elif not isinstance(content, str):
            places.append(where)
            parts.append([content])
    n = len(places) + sum(map(len, left_out.values()))
    report = Report(n, len(places), left_out, skipped=skipped)
    if not places:
        raise InputError(f"{split} has no usable row: {report}")
    return Placed(places, joined(parts)), report


def _check_labels(placed: Mapping[str, Placed]) -> None:
    """Raise `InputError` for classes of mixed types, and for one that training never sees."""
    if type(placed["train"].examples[0]).target_labels is Example.target_labels:
        return
    everything = chain.from_iterable(zip(*part, strict=True) for part in placed.values())
    check_one_type((where, label) for where, example in everything for label in labels_of(example))
    learnt = {label for example in placed["train"].examples for label in labels_of(example)}
    for split in ("valid", "test"):
        for where, example in zip(*placed.get(split, ((), ())), strict=True):
            for label in labels_of(example):
                if label not in learnt:
                    raise InputError(
                        f"{where}: the label {label!r} never occurs in the training data."
                        f"{choices(label, sorted(learnt))}"
                    )


def _hold_out(rows: Placed, share: float, seed: int) -> tuple[Placed, Placed]:
    size = len(rows.examples)
    n = round(share * size)
    if not 0 < n < size:
        raise InputError(f"valid_fraction={share} of {size} training rows leaves a split empty")
    are_for_training = [True] * size
    for i in Random(f"hold out {seed}").sample(range(size), n):
        are_for_training[i] = False
    train, held_out = (
        Placed([*compress(rows.places, which)], chosen(rows.examples, which))
        for which in (are_for_training, [not stays for stays in are_for_training])
    )
    return train, held_out


def lowered(example: Example) -> Example:
    """Return the example with its texts in lower case, but not its labels."""
    kind = type(example)
    if isinstance(example, Chat) or (has_signals(kind.medium) and not kind.writes):
        return example
    labels = () if kind.writes else kind.targets
    names = (field.name for field in fields(example) if field.name not in labels)  # pyright: ignore[reportArgumentType]
    return replace(example, **{name: _lowered(getattr(example, name)) for name in names})  # pyright: ignore[reportArgumentType,reportUnknownVariableType]


def _lowered(value: Any) -> Any:
    """Lower-case a text, or each of several; leave anything else unchanged."""
    if isinstance(value, tuple):
        return tuple(map(_lowered, cast(tuple[Any, ...], value)))
    return lower_case(value) if isinstance(value, str) else value


def all_lowered(examples: Sequence[Example]) -> Sequence[Example]:
    """Return the examples, each as `lowered` does."""
    if isinstance(examples, ExampleColumns):
        texts = [[*map(lower_case, column)] for column in examples.columns]
        return ExampleColumns(examples.kind, texts)
    return [*map(lowered, examples)]


def lowered_corpus(corpus: Corpus) -> Corpus:
    """Return the corpus with all of its texts in lower case."""
    if corpus.lowercase:
        return corpus
    splits = {split: all_lowered(examples) for split, examples in corpus.splits.items()}
    return replace(corpus, **splits, lowercase=True)
