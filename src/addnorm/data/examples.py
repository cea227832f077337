"""Corpora: fourteen kinds of examples, three splits, and a report on every row read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from numbers import Real
from reprlib import repr as short
from typing import Literal

import xxhash
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from addnorm.data.scaling import Scaling
from addnorm.errors import InputError

Task = Literal[
    "language",
    "translation",
    "masked_language",
    "denoising",
    "classification",
    "multi_label",
    "regression",
    "tagging",
    "forecasting",
]

Medium = Literal["text", "images", "audio", "series"]
"""What examples are made of."""


@dataclass(frozen=True, slots=True)
class Text:
    """A document for a language model."""

    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation, or a text and its summary."""

    source: str
    target: str
    other_targets: tuple[str, ...] = ()
    """Further references: evaluation may count the best one, training reads `target` alone."""


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text, or two that are read together, and its class."""

    text: str
    label: str
    text_pair: str | None = None


@dataclass(frozen=True, slots=True)
class MultiLabelled:
    """A text and any number of labels."""

    text: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """A text, or two that are read together, and one or more numbers."""

    text: str
    values: tuple[float, ...]
    text_pair: str | None = None


@dataclass(frozen=True, slots=True)
class Tagged:
    """A sentence as words, with one tag for each."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


BEGIN, END = "\0begin\0", "\0end\0"
"""What stands, in the text of a conversation, for the tokenizer's start and end tokens."""


@dataclass(frozen=True, slots=True)
class Said:
    """A part of a conversation, and whether it is an answer, which a model learns to give."""

    text: str
    is_answer: bool


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation in parts, as a template writes it, and what was said in it.

    From its `messages` and `template` the parts are written again for a tokenizer that has names
    for its special tokens, which a template may read.
    """

    parts: tuple[Said, ...]
    contents: tuple[str, ...]
    messages: tuple[Mapping[str, str], ...] = field(default=(), compare=False)
    template: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """An image (0 is black, 255 white) and its class."""

    pixels: UInt8[Tensor, "channels height width"]
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class Clip:
    """A clip of sound, in log-mel features, and its class."""

    frames: Float[Tensor, "n_mels frames"]
    label: str


@dataclass(frozen=True, slots=True, eq=False)
class Captioned:
    """An image (0 is black, 255 white) and a text about it."""

    pixels: UInt8[Tensor, "channels height width"]
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Transcribed:
    """A clip of sound, in log-mel features, and what is said in it."""

    frames: Float[Tensor, "n_mels frames"]
    text: str


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A series of several variables, in units, whose steps from `start` on are to be forecast.

    NaN stands where a step or a value is missing; `places` has the line of each step. `scaling` is
    by the training part, and a season is what repeats itself after so many steps.
    """

    values: Float[Tensor, "variables time"]
    start: int
    names: tuple[str, ...]
    places: Sequence[str]
    scaling: Scaling
    season: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class LabelledSeries:
    """A whole series of several variables, which may have names, and its class."""

    values: Float[Tensor, "variables time"]
    label: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ScoredSeries:
    """A whole series of several variables, which may have names, and one or more numbers."""

    series: Float[Tensor, "variables time"]
    values: tuple[float, ...]
    names: tuple[str, ...] = ()


Example = (
    Text
    | Pair
    | Labelled
    | MultiLabelled
    | Scored
    | Tagged
    | Chat
    | Image
    | Clip
    | Captioned
    | Transcribed
    | Series
    | LabelledSeries
    | ScoredSeries
)

TASKS: dict[type[Example], Task] = {
    Text: "language",
    Pair: "translation",
    Labelled: "classification",
    MultiLabelled: "multi_label",
    Scored: "regression",
    Tagged: "tagging",
    Chat: "language",
    Image: "classification",
    Clip: "classification",
    Captioned: "translation",
    Transcribed: "translation",
    Series: "forecasting",
    LabelledSeries: "classification",
    ScoredSeries: "regression",
}


MEDIA: dict[type[Example], Medium] = {
    Image: "images",
    Captioned: "images",
    Clip: "audio",
    Transcribed: "audio",
    Series: "series",
    LabelledSeries: "series",
    ScoredSeries: "series",
}
"""What examples are made of, other than text."""


@dataclass(frozen=True)
class Report:
    """An account of the rows of one split: `read == used + left out`, with their locations.

    `left_out` maps reasons to locations (`file:line`); `shortened` lists truncated examples;
    `skipped` counts lines that are no part of any row, such as comments, by their kind.
    """

    read: int
    used: int
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    shortened: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        assert self.read == self.used + sum(map(len, self.left_out.values())), (
            "rows unaccounted for"
        )

    def __str__(self) -> str:
        parts = [f"{self.read:,} read", f"{self.used:,} used"]
        for reason, places in self.left_out.items():
            parts.append(f"{len(places):,} left out: {reason} ({_some(places)})")
        if self.shortened:
            parts.append(f"{len(self.shortened):,} shortened ({_some(self.shortened)})")
        parts += [f"{n:,} {kind} skipped" for kind, n in self.skipped.items()]
        return ", ".join(parts)


def _some(places: Sequence[str]) -> str:
    return ", ".join(places[:3]) + (", …" if len(places) > 3 else "")


@dataclass(frozen=True)
class Corpus:
    """Examples of one kind in three splits, with a report on each split.

    Raises `InputError` if there are no training examples, or if texts have different numbers of
    values, or a second text in part.
    """

    train: Sequence[Example]
    valid: Sequence[Example] = ()
    test: Sequence[Example] = ()
    reports: Mapping[str, Report] = field(default_factory=dict[str, Report])
    pieces: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """Where examples were made of several images or clips, the digests of these in each split."""
    lowercase: bool = False
    """Whether all texts are in lower case: what learns from them puts other texts in it too."""

    def __post_init__(self) -> None:
        if not self.train:
            raise InputError("the corpus has no training examples")
        kinds = {type(example) for split in self.splits.values() for example in split}
        if len(kinds) > 1 or not kinds <= TASKS.keys():
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            valid = ", ".join(kind.__name__ for kind in TASKS)
            raise InputError(f"a corpus holds one kind of example of {valid}; here are {names}")
        for split, examples in self.splits.items():
            for n, example in enumerate(examples, 1):
                _check_types(example, f"{split} example {n}")
        if len({bool(second_text(one)) for split in self.splits.values() for one in split}) > 1:
            raise InputError("some examples have a second text and others none")
        sizes = {len(one.values) for one in self._scored()}
        if len(sizes) > 1:
            raise InputError(
                f"every text needs as many values; here are {min(sizes)} and {max(sizes)}"
            )

    @property
    def splits(self) -> dict[str, Sequence[Example]]:
        """The three splits by name, including empty ones."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def task(self) -> Task:
        """The task that the examples are for."""
        return TASKS[type(self.train[0])]

    @property
    def medium(self) -> Medium:
        """What the examples are made of."""
        return MEDIA.get(type(self.train[0]), "text")

    @property
    def has_text(self) -> bool:
        """Whether text is read or written, so that there must be a tokenizer."""
        return self.medium == "text" or self.task == "translation"

    @property
    def labels(self) -> tuple[str, ...]:
        """All classes, labels or tags in train and valid, sorted, or the names of the numbers.

        Of a series to forecast, the names of its variables. Empty for other tasks.
        """
        first = self.train[0]
        if isinstance(first, Series):
            return first.names
        if scored := next(self._scored(), None):
            n = len(scored.values)
            return ("value",) if n == 1 else tuple(f"value_{i}" for i in range(1, n + 1))
        examples = chain(self.train, self.valid)
        found = {label for example in examples for label in labels_of(example)}
        return tuple(sorted(label for label in found if label.strip()))

    def _scored(self) -> Iterator[Scored | ScoredSeries]:
        every = chain.from_iterable(self.splits.values())
        return (one for one in every if isinstance(one, Scored | ScoredSeries))

    def source_texts(self) -> Iterator[str]:
        """The texts for training a (source) tokenizer: the training examples only."""
        return (text for one in self.train for text in (source_text(one), second_text(one)) if text)

    def target_texts(self) -> Iterator[str]:
        """The texts to write in the training examples; none for other tasks."""
        return (target_text(one) for one in self.train) if self.task == "translation" else iter(())


def _check_types(example: Example, where: str) -> None:
    """Raise `InputError` for texts and classes that are not strings, and tags of other words."""
    for text in _strings_of(example):
        if not isinstance(text, str):
            raise InputError(f"{where}: expected text, not {short(text)}")
    if isinstance(example, Tagged) and len(example.tokens) != len(example.tags):
        raise InputError(f"{where}: {len(example.tokens)} words but {len(example.tags)} tags")
    if isinstance(example, Scored | ScoredSeries):
        values: Sequence[object] = example.values
        for value in values:
            if isinstance(value, bool) or not isinstance(value, Real):
                raise InputError(f"{where}: expected a number, not {short(value)}")


def _strings_of(example: Example) -> tuple[object, ...]:
    """Everything in an example that is text: also its classes or tags."""
    match example:
        case Pair(source, target, others):
            return source, target, *others
        case Labelled(text, label, second):
            return text, label, second or ""
        case MultiLabelled(text, labels):
            return text, *labels
        case Scored(text, _, second):
            return text, second or ""
        case Tagged(tokens, tags):
            return *tokens, *tags
        case Text(text) | Captioned(_, text) | Transcribed(_, text):
            return (text,)
        case Image() | Clip() | LabelledSeries():
            return (example.label,)
        case _:
            return ()


def labels_of(example: Example) -> tuple[str, ...]:
    """The class, labels or tags of an example."""
    match example:
        case Labelled(_, label) | Image(_, label) | Clip(_, label) | LabelledSeries(_, label):
            return (label,)
        case MultiLabelled(_, labels) | Tagged(_, labels):
            return labels
        case _:
            return ()


def source_text(example: Example) -> str:
    """The input text of an example: words joined by spaces; empty for what is no text."""
    match example:
        case Text(text) | Labelled(text, _) | MultiLabelled(text, _) | Scored(text, _):
            return text
        case Pair(source):
            return source
        case Tagged(tokens, _):
            return " ".join(tokens)
        case Chat(parts, _):
            return "".join(one.text for one in parts).replace(BEGIN, "").replace(END, "")
        case (
            Image()
            | Clip()
            | Captioned()
            | Transcribed()
            | Series()
            | LabelledSeries()
            | ScoredSeries()
        ):
            return ""


def second_text(example: Example) -> str:
    """The text that is read after the first, of two; else empty."""
    return example.text_pair or "" if isinstance(example, Labelled | Scored) else ""


def target_text(example: Example) -> str:
    """The target text of an example: a translation, caption or transcript; else empty."""
    match example:
        case Pair(_, text) | Captioned(_, text) | Transcribed(_, text):
            return text
        case _:
            return ""


def words_of(example: Example) -> tuple[str, ...]:
    """The words to tag; empty for other tasks."""
    return example.tokens if isinstance(example, Tagged) else ()


def signal_of(example: Example) -> Shaped[Tensor, "channels *size"] | None:
    """The numbers that an example other than text is made of."""
    match example:
        case (
            Image(signal, _)
            | Clip(signal, _)
            | Captioned(signal, _)
            | Transcribed(signal, _)
            | LabelledSeries(signal, _)
            | ScoredSeries(signal, _)
        ):
            return signal
        case _:
            return None


def content_digest(example: Example) -> str:
    """A digest of what is read of an example, by which the same one is known again."""
    if signal_of(example) is not None:
        return signal_digest(example)
    read = "\0".join([*words_of(example)] or [source_text(example), second_text(example)])
    return xxhash.xxh3_128_hexdigest(read.encode())


def signal_digest(example: Example) -> str:
    """A digest of the numbers of an image or a clip, by which the same one is known again."""
    signal = signal_of(example)
    assert signal is not None
    return xxhash.xxh3_128_hexdigest(signal.contiguous().numpy().tobytes())
