"""Corpora: eight kinds of examples, three splits, and a report on every row read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Literal

from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from addnorm.errors import InputError

Task = Literal["language", "translation", "classification", "multi_label", "regression", "tagging"]

Medium = Literal["text", "images", "audio"]
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
    """A text and its class."""

    text: str
    label: str


@dataclass(frozen=True, slots=True)
class MultiLabelled:
    """A text and any number of labels."""

    text: str
    labels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Scored:
    """A text and one or more numbers."""

    text: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Tagged:
    """A sentence as words, with one tag for each."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


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


Example = Text | Pair | Labelled | MultiLabelled | Scored | Tagged | Image | Clip

TASKS: dict[type[Example], Task] = {
    Text: "language",
    Pair: "translation",
    Labelled: "classification",
    MultiLabelled: "multi_label",
    Scored: "regression",
    Tagged: "tagging",
    Image: "classification",
    Clip: "classification",
}


MEDIA: dict[type[Example], Medium] = {Image: "images", Clip: "audio"}
"""What examples are made of, other than text."""


@dataclass(frozen=True)
class Report:
    """An account of the rows of one split: `read == used + left out`, with their locations.

    `left_out` maps reasons to locations (`file:line`); `shortened` lists truncated examples.
    """

    read: int
    used: int
    left_out: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    shortened: Sequence[str] = ()

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
        return ", ".join(parts)


def _some(places: Sequence[str]) -> str:
    return ", ".join(places[:3]) + (", …" if len(places) > 3 else "")


@dataclass(frozen=True)
class Corpus:
    """Examples of one kind in three splits, with a report on each split.

    Raises `InputError` if there are no training examples, or if texts have different numbers of
    values.
    """

    train: Sequence[Example]
    valid: Sequence[Example] = ()
    test: Sequence[Example] = ()
    reports: Mapping[str, Report] = field(default_factory=dict[str, Report])

    def __post_init__(self) -> None:
        if not self.train:
            raise InputError("the corpus has no training examples")
        kinds = {type(example) for split in self.splits.values() for example in split}
        if len(kinds) > 1 or not kinds <= TASKS.keys():
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            valid = ", ".join(kind.__name__ for kind in TASKS)
            raise InputError(f"a corpus holds one kind of example of {valid}; here are {names}")
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
    def labels(self) -> tuple[str, ...]:
        """All classes, labels or tags in train and valid, sorted, or the names of the numbers.

        Empty for other tasks.
        """
        if scored := next(self._scored(), None):
            n = len(scored.values)
            return ("value",) if n == 1 else tuple(f"value_{i}" for i in range(1, n + 1))
        examples = chain(self.train, self.valid)
        return tuple(sorted({label for example in examples for label in labels_of(example)}))

    def _scored(self) -> Iterator[Scored]:
        return (one for split in self.splits.values() for one in split if isinstance(one, Scored))

    def source_texts(self) -> Iterator[str]:
        """The texts for training a (source) tokenizer: the training examples only."""
        return (source_text(example) for example in self.train)

    def target_texts(self) -> Iterator[str]:
        """The translations in the training examples; empty for other tasks."""
        return (example.target for example in self.train if isinstance(example, Pair))


def labels_of(example: Example) -> tuple[str, ...]:
    """The class, labels or tags of an example."""
    match example:
        case Labelled(_, label) | Image(_, label) | Clip(_, label):
            return (label,)
        case MultiLabelled(_, labels) | Tagged(_, labels):
            return labels
        case _:
            return ()


def source_text(example: Example) -> str:
    """The input text of an example: words joined by spaces; empty for an image or a clip."""
    match example:
        case Text(text) | Labelled(text, _) | MultiLabelled(text, _) | Scored(text, _):
            return text
        case Pair(source):
            return source
        case Tagged(tokens, _):
            return " ".join(tokens)
        case Image() | Clip():
            return ""


def target_text(example: Example) -> str:
    """The target text of an example: the translation; empty for other tasks."""
    return example.target if isinstance(example, Pair) else ""


def words_of(example: Example) -> tuple[str, ...]:
    """The words to tag; empty for other tasks."""
    return example.tokens if isinstance(example, Tagged) else ()


def signal_of(example: Example) -> Shaped[Tensor, "channels *size"] | None:
    """The numbers that an example other than text is made of."""
    match example:
        case Image(signal, _) | Clip(signal, _):
            return signal
        case _:
            return None
