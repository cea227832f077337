"""The types of arguments and results of `Run`, and checks of arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from os import PathLike
from reprlib import repr as short
from typing import Any

from jaxtyping import Float
from torch import Tensor

from addnorm.data import Corpus, DataConfig, DataPart
from addnorm.data.tokenizing.word_splitting import words_between_spaces
from addnorm.errors import InputError, items_of, listed
from addnorm.generate import Generated

FileName = str | PathLike[str]
"""The name of a file or a folder."""

Texts = list[str] | tuple[str, ...]
"""Several texts; a single string is one text."""

TextPair = tuple[str, str]
"""Two texts that a model reads together, such as a question and an answer."""

Several = Texts | list[TextPair]
"""Several texts, or several pairs of them in a list."""

Sentence = str | Sequence[str]
"""A sentence to tag: its words, or a string with spaces between them."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """A forecast with the history before it and the true values, all in their units.

    Unknown values of the truth are NaN.
    """

    names: tuple[str, ...]
    past_times: tuple[datetime, ...]
    times: tuple[datetime, ...]
    past: Float[Tensor, "variables look_back"]
    values: Float[Tensor, "variables horizon"]
    truth: Float[Tensor, "variables horizon"] | None = None


@dataclass(frozen=True)
class Classified:
    """The most probable class of a text, and the probability of every class.

    `labels` are the predicted labels: just the class or, in multi-label classification, all labels
    with a probability above the threshold.
    """

    label: str
    labels: tuple[str, ...]
    probabilities: dict[str, float]

    @classmethod
    def of(
        cls, labels: Sequence[str], row: Sequence[float], threshold: float | None = None
    ) -> "Classified":
        """Build it from the probability of each label; with a `threshold`, predict all above it."""
        probabilities = dict(zip(labels, row, strict=True))
        best = max(probabilities, key=probabilities.__getitem__)
        if threshold is None:
            return cls(best, (best,), probabilities)
        above = tuple(label for label, p in probabilities.items() if p > threshold)
        return cls(best, above, probabilities)


@dataclass(frozen=True)
class LineAnswer:
    """The answer of `addnorm classify` for one input, as plain text and as fields of JSON."""

    plain: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class Candidate:
    """A token at a mask, or a denoiser's span in a gap, and its probability there."""

    token: str
    probability: float


@dataclass(frozen=True)
class Filled:
    """A text with the most probable token at each mask, and the candidates for each, best first.

    A denoiser gives one candidate for each gap, its span, and none for a gap that it left out.
    `masks` is empty if its decoder writes the whole text.
    """

    text: str
    masks: list[tuple[Candidate, ...]]


Written = Generated
"""The former name of `Generated`."""


def words_of(sentences: object) -> list[list[str]]:
    """Return the words of each sentence; a text is split at spaces.

    Raises `InputError` for anything else.
    """
    return [
        words_between_spaces(words) if isinstance(words, str) else listed(words, f"sentences[{i}]")
        for i, words in enumerate(items_of(sentences, "sentences"))
    ]


def check_data(data: object) -> None:
    """Raise `InputError` unless this is a corpus or a data configuration."""
    if not isinstance(data, Corpus | DataPart):
        raise InputError(
            f"data = {short(data)}: give what addnorm.text, pairs, labelled, tagged or table "
            "return, such as addnorm.text([text])"
        )


def corpus_of(data: Corpus | DataConfig) -> Corpus:
    """Load the corpus. Raises `InputError` as `check_data` does."""
    check_data(data)
    return data if isinstance(data, Corpus) else data.load()


def check_threshold(threshold: float) -> None:
    """Raise `InputError` for a threshold outside of 0 to 1."""
    if not 0.0 <= threshold <= 1.0:
        raise InputError(f"`threshold = {threshold}`: must be at least 0 and at most 1")
