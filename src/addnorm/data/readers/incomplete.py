"""Examples that lack a text, a label or a number, so that there is nothing to read or predict."""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from addnorm.data.examples import (
    Captioned,
    Chat,
    Clip,
    Corpus,
    Example,
    Image,
    Labelled,
    LabelledSeries,
    MultiLabelled,
    Pair,
    Report,
    Scored,
    ScoredSeries,
    Tagged,
    Text,
    Transcribed,
    signal_of,
)
from addnorm.errors import InputError

NOT_FINITE = "a number that is missing, NaN or infinite"
"""Why an example without a number, or with such a one, is left out."""


def lack(example: Example) -> str | None:
    """What an example lacks, such as an "empty text" or "no label"; None if it is complete."""
    return _lack_of_text(example) or _lack_of_answer(example) or _lack_of_numbers(example)


def _lack_of_text(example: Example) -> str | None:
    """What is missing of the text that is read."""
    match example:
        case Text(text) | Labelled(text) | MultiLabelled(text) | Scored(text) if not text.strip():
            return "empty text"
        case Labelled(_, _, str(second)) | Scored(_, _, str(second)) if not second.strip():
            return "empty text_pair"
        case Tagged(tokens, tags):
            return None if tokens and all((*tokens, *tags)) else "an empty word or tag, or no words"
        case _:
            return None


def _lack_of_answer(example: Example) -> str | None:
    """What is missing of the text, the label or the numbers to predict."""
    match example:
        case Pair(source, target):
            sides = {"source": source, "target": target}
            empty = [name for name, side in sides.items() if not side.strip()]
            return f"empty {' and '.join(empty)}" if empty else None
        case Captioned(_, text) | Transcribed(_, text):
            return None if text.strip() else "no text"
        case Labelled(_, label) | Image(_, label) | Clip(_, label) | LabelledSeries(_, label):
            return None if label.strip() else "no label"
        case Scored(_, values) | ScoredSeries(_, values):
            return None if values and all(map(math.isfinite, values)) else NOT_FINITE
        case Chat(parts):
            return None if any(part.is_answer for part in parts) else "no answer of the assistant"
        case _:
            return None


def _lack_of_numbers(example: Example) -> str | None:
    signal = signal_of(example)
    if signal is None or not signal.is_floating_point() or bool(torch.isfinite(signal).all()):
        return None
    return NOT_FINITE


def complete(corpus: Corpus) -> Corpus:
    """The corpus without the examples that lack something, which its reports count.

    Readers leave such rows out, so this concerns a corpus that was put together in Python. Raises
    `InputError` where that leaves nothing of a split.
    """
    lacks = {split: [*map(lack, examples)] for split, examples in corpus.splits.items()}
    if not any(what for some in lacks.values() for what in some):
        return corpus
    splits: Any = {}
    reports = {**corpus.reports}
    for split, examples in corpus.splits.items():
        left_out = dict(_places(split, lacks[split]))
        n = sum(map(len, left_out.values()))
        before = reports.get(split, Report(len(examples), len(examples)))
        report = replace(before, used=before.used - n, left_out={**before.left_out, **left_out})
        if examples and n == len(examples):
            raise InputError(f"{split} has no example that is complete: {report}")
        if left_out:
            reports[split] = report
        splits[split] = [
            one for one, what in zip(examples, lacks[split], strict=True) if what is None
        ]
    return replace(corpus, **splits, reports=reports)


def _places(split: str, lacks: list[str | None]) -> Iterator[tuple[str, list[str]]]:
    """Each reason with the examples that it concerns."""
    for reason in dict.fromkeys(filter(None, lacks)):
        yield reason, [f"{split} example {n}" for n, one in enumerate(lacks, 1) if one == reason]
