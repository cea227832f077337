"""Corpora: the kinds of examples, three splits, and a report on all rows read."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from numbers import Real
from operator import attrgetter, methodcaller
from reprlib import repr as short
from types import NoneType

from jaxtyping import Float, UInt8
from torch import Tensor

from addnorm.data.conversation import BEGIN, END, Conversation, Message, conversation
from addnorm.data.conversation import ChatPart as ChatPart
from addnorm.data.example import (
    Example,
    Medium,
    check_every,
    has_signals,
    lack_of,
    text_fields,
)
from addnorm.data.example import signal_digest as signal_digest
from addnorm.data.example_columns import ExampleColumns, kinds_of, source_texts, target_texts
from addnorm.data.scaling import Scaling
from addnorm.errors import InputError


@dataclass(frozen=True, slots=True)
class Text(Example):
    """A document for a language model."""

    task = "language"

    text: str

    def source_text(self) -> str:
        return self.text

    def lack(self) -> str | None:
        return lack_of(text=self.text)


@dataclass(frozen=True, slots=True)
class Pair(Example):
    """A sentence and its translation, or a text and its summary."""

    task = "translation"
    writes = True
    targets = ("target", "other_targets")

    source: str
    target: str
    other_targets: tuple[str, ...] = ()
    """Further references: evaluation may count the best one, training reads `target` alone."""

    def source_text(self) -> str:
        return self.source

    def target_text(self) -> str:
        return self.target

    def lack(self) -> str | None:
        return lack_of(source=self.source, target=self.target)


@dataclass(frozen=True, slots=True)
class Labelled(Example):
    """A text, or two texts read together, and its class."""

    task = "classification"
    targets = ("label",)

    text: str
    label: str
    text_pair: str | None = None

    def source_text(self) -> str:
        return self.text

    def second_text(self) -> str:
        return self.text_pair or ""

    def target_labels(self) -> tuple[str, ...]:
        return (self.label,)

    def lack(self) -> str | None:
        return lack_of(text=self.text, text_pair=self.text_pair) or no_label(self.label)


@dataclass(frozen=True, slots=True)
class MultiLabelled(Example):
    """A text and any number of labels."""

    task = "multi_label"
    targets = ("labels",)

    text: str
    labels: tuple[str, ...]

    def source_text(self) -> str:
        return self.text

    def target_labels(self) -> tuple[str, ...]:
        return self.labels

    def lack(self) -> str | None:
        return lack_of(text=self.text)


@dataclass(frozen=True, slots=True)
class Scored(Example):
    """A text, or two texts read together, and one or more numbers."""

    task = "regression"
    targets = ("values",)

    text: str
    values: tuple[float, ...]
    text_pair: str | None = None

    def source_text(self) -> str:
        return self.text

    def second_text(self) -> str:
        return self.text_pair or ""

    def target_numbers(self) -> tuple[float, ...]:
        return self.values

    def problem(self) -> str | None:
        return wrong_number(self.values)

    @classmethod
    def label_names(cls, examples: Iterable[Example]) -> tuple[str, ...]:
        return number_names(examples)

    def lack(self) -> str | None:
        return lack_of(text=self.text, text_pair=self.text_pair) or not_finite(self.values)


@dataclass(frozen=True, slots=True)
class Tagged(Example):
    """A sentence as words, with one tag for each."""

    task = "tagging"
    targets = ("tags",)

    tokens: tuple[str, ...]
    tags: tuple[str, ...]

    def source_text(self) -> str:
        """The words joined by spaces."""
        return " ".join(self.tokens)

    def target_labels(self) -> tuple[str, ...]:
        return self.tags

    def words(self) -> tuple[str, ...]:
        return self.tokens

    def problem(self) -> str | None:
        if len(self.tokens) == len(self.tags):
            return None
        return f"{len(self.tokens)} words but {len(self.tags)} tags"

    def lack(self) -> str | None:
        if not self.tokens:
            return "no words"
        return None if all((*self.tokens, *self.tags)) else "an empty word or tag"


@dataclass(frozen=True, slots=True)
class Chat(Conversation, Example):
    """A conversation to learn from (see `Conversation`)."""

    task = "language"

    @classmethod
    def of_messages(
        cls, messages: Sequence[Message], template: str | None, where: str = "chat"
    ) -> "Chat":
        """Build the conversation from messages. Raises `InputError` as `conversation` does."""
        written = conversation(messages, template, where)
        return cls(written.parts, written.contents, written.messages, written.template)

    def source_text(self) -> str:
        return "".join(part.text for part in self.parts).replace(BEGIN, "").replace(END, "")

    def lack(self) -> str | None:
        return None if any(part.is_answer for part in self.parts) else "no answer of the assistant"


@dataclass(frozen=True, slots=True, eq=False)
class Image(Example):
    """An image (0 is black, 255 white) and its class."""

    task = "classification"
    medium = "images"
    targets = ("label",)

    pixels: UInt8[Tensor, "channels height width"]
    label: str

    def target_labels(self) -> tuple[str, ...]:
        return (self.label,)

    def signal(self) -> Tensor:
        return self.pixels

    def lack(self) -> str | None:
        return no_label(self.label)


@dataclass(frozen=True, slots=True, eq=False)
class Clip(Example):
    """A clip of sound, in log-mel features, and its class."""

    task = "classification"
    medium = "audio"
    targets = ("label",)

    frames: Float[Tensor, "n_mels frames"]
    label: str

    def target_labels(self) -> tuple[str, ...]:
        return (self.label,)

    def signal(self) -> Tensor:
        return self.frames

    def lack(self) -> str | None:
        return no_label(self.label)


@dataclass(frozen=True, slots=True, eq=False)
class Captioned(Example):
    """An image (0 is black, 255 white) and a text about it."""

    task = "translation"
    medium = "images"
    writes = True
    targets = ("text",)

    pixels: UInt8[Tensor, "channels height width"]
    text: str

    def target_text(self) -> str:
        return self.text

    def signal(self) -> Tensor:
        return self.pixels

    def lack(self) -> str | None:
        return None if self.text.strip() else "no text"


@dataclass(frozen=True, slots=True, eq=False)
class Transcribed(Example):
    """A clip of speech, in log-mel features, and its transcript."""

    task = "translation"
    medium = "audio"
    writes = True
    targets = ("text",)

    frames: Float[Tensor, "n_mels frames"]
    text: str

    def target_text(self) -> str:
        return self.text

    def signal(self) -> Tensor:
        return self.frames

    def lack(self) -> str | None:
        return None if self.text.strip() else "no text"


@dataclass(frozen=True, slots=True, eq=False)
class Series(Example):
    """A series of several variables, in their units, whose steps from `start` on are forecast.

    NaN marks a missing step or value; `places` has the line of each step in its file. `scaling` is
    computed from the training part, and `season` is the period in steps.
    """

    task = "forecasting"
    medium = "series"

    values: Float[Tensor, "variables time"]
    start: int
    names: tuple[str, ...]
    places: Sequence[str]
    scaling: Scaling
    season: int | None = None

    def digest(self) -> None:
        """Return None: parts of one series are not compared with each other."""
        return

    @classmethod
    def label_names(cls, examples: Iterable[Example]) -> tuple[str, ...]:
        """The names of the variables."""
        return next((example.names for example in examples if isinstance(example, Series)), ())


@dataclass(frozen=True, slots=True, eq=False)
class LabelledSeries(Example):
    """A whole series of several variables, which may have names, and its class."""

    task = "classification"
    medium = "series"
    targets = ("label",)

    values: Float[Tensor, "variables time"]
    label: str
    names: tuple[str, ...] = ()

    def target_labels(self) -> tuple[str, ...]:
        return (self.label,)

    def signal(self) -> Tensor:
        return self.values

    def lack(self) -> str | None:
        return no_label(self.label)


@dataclass(frozen=True, slots=True, eq=False)
class ScoredSeries(Example):
    """A whole series of several variables, which may have names, and one or more numbers."""

    task = "regression"
    medium = "series"
    targets = ("values",)

    series: Float[Tensor, "variables time"]
    values: tuple[float, ...]
    names: tuple[str, ...] = ()

    def target_numbers(self) -> tuple[float, ...]:
        return self.values

    def problem(self) -> str | None:
        return wrong_number(self.values)

    def signal(self) -> Tensor:
        return self.series

    @classmethod
    def label_names(cls, examples: Iterable[Example]) -> tuple[str, ...]:
        return number_names(examples)

    def lack(self) -> str | None:
        return not_finite(self.values)


NOT_FINITE = "a number that is missing, NaN or infinite"
"""Why an example without a number, or with such a one, is left out."""


def no_label(label: str) -> str | None:
    """Return "no label" if the label is blank, else None."""
    return None if label.strip() else "no label"


def not_finite(values: Sequence[float]) -> str | None:
    """Return the text `NOT_FINITE` if numbers are missing or not finite, else None."""
    return None if values and all(map(math.isfinite, values)) else NOT_FINITE


def wrong_number(values: Sequence[object]) -> str | None:
    """Return the problem with the first value that is not a number; None if all are numbers."""
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Real):
            return f"expected a number, not {short(value)}"
    return None


def number_names(examples: Iterable[Example]) -> tuple[str, ...]:
    """Return the names of the numbers to predict: `value`, or `value_1`, `value_2` …"""
    n = next((len(numbers) for example in examples if (numbers := example.target_numbers())), 0)
    return ("value",) if n == 1 else tuple(f"value_{i}" for i in range(1, n + 1))


EXAMPLES = (
    Text, Pair, Labelled, MultiLabelled, Scored, Tagged, Chat, Image, Clip, Captioned, Transcribed,
    Series, LabelledSeries, ScoredSeries,
)  # fmt: skip
"""AddNorm's kinds of examples; a custom kind is another subclass of `Example`."""


def have_all_texts(kind: type[Example], examples: Sequence[Example]) -> bool:
    """Return whether it is seen field by field that no example lacks anything.

    That is so for kinds of texts alone, if every text is there and none is blank.
    """
    if kind not in (Text, Pair, Labelled):
        return False
    for name, is_single, is_optional in text_fields(kind):
        if not is_single:  # more references, which no example needs
            continue
        values = [*map(attrgetter(name), examples)]
        types = {*map(type, values)}
        if is_optional and types == {NoneType}:
            continue
        if types != {str} or not all(map(str.strip, values)):
            return False
    return True


@dataclass(frozen=True)
class Report:
    """An account of the rows of one split: `read == used + left out`, with their locations.

    `left_out` maps reasons to locations (`file:line`); `shortened` lists truncated examples;
    `skipped` counts lines that belong to no row, such as comments, by their kind.
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
    """The digests of the images or clips of each split, where examples are made of several."""
    places: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """The file of each image or clip of each split, where it was read from one, for messages."""
    lowercase: bool = False
    """Whether all texts are in lower case; a model that learns from them lower-cases its inputs."""

    def __post_init__(self) -> None:
        if not self.train:
            raise InputError("the corpus has no training examples")
        kinds = set[type[Example]]().union(*map(kinds_of, self.splits.values()))
        if len(kinds) > 1 or not any(Example in kind.__mro__ for kind in kinds):
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            if any(Example in kind.__mro__ for kind in kinds):
                raise InputError(f"a corpus holds examples of one kind, not of {names}")
            valid = ", ".join(kind.__name__ for kind in EXAMPLES)
            raise InputError(
                f"a corpus holds examples of one kind, such as {valid} or one of your own: "
                f"{names} are not examples"
            )
        for split, examples in self.splits.items():
            if not isinstance(examples, ExampleColumns):  # which are texts
                check_every(self.kind, examples, split)
        self._check_alike()

    def _check_alike(self) -> None:
        """Raise `InputError` unless all examples have as many texts and numbers."""
        kind = self.kind
        may_have_two = kind.second_text is not Example.second_text
        if may_have_two and len({bool(example.second_text()) for example in self._every()}) > 1:
            raise InputError("some examples have a second text and others have none")
        if kind.target_numbers is Example.target_numbers:
            return
        sizes = {len(example.target_numbers()) for example in self._every()}
        if len(sizes) > 1:
            raise InputError(
                f"every text needs as many values; one has {min(sizes)}, another {max(sizes)}"
            )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(examples):,} {name}" for name, examples in self.splits.items())
        return f"<Corpus of {self.kind.__name__}: {sizes}>"

    def _every(self) -> Iterator[Example]:
        return chain.from_iterable(self.splits.values())

    @property
    def splits(self) -> dict[str, Sequence[Example]]:
        """The three splits by name, including empty ones."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def kind(self) -> type[Example]:
        """The class of the examples."""
        return type(self.train[0])

    @property
    def task(self) -> str:
        """The name of the usual task for these examples."""
        return self.kind.task

    @property
    def medium(self) -> Medium:
        """The medium of the examples' input."""
        return self.kind.medium

    @property
    def has_text(self) -> bool:
        """Whether text is read or written, so that a tokenizer is needed."""
        return self.kind.writes or not has_signals(self.medium)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of a model's outputs, from the splits train and valid.

        They are all classes, labels or tags, sorted; the names of the numbers to predict; or the
        variables of a series to forecast. Empty for other tasks.
        """
        return self.kind.label_names(chain(self.train, self.valid))

    def source_texts(self) -> Iterator[str]:
        """The texts from which a (source) tokenizer is trained: of training examples only."""
        first = source_texts(self.train)
        if self.kind.second_text is Example.second_text:
            return filter(None, first)
        second = (example.second_text() for example in self.train)
        return filter(None, chain.from_iterable(zip(first, second, strict=True)))

    def target_texts(self) -> Iterator[str]:
        """The target texts of the training examples; empty for tasks without any."""
        return iter(target_texts(self.train) if self.kind.writes else ())


# Former names: of a class, and of methods of an example that were functions.
Said = ChatPart
source_text = methodcaller("source_text")
second_text = methodcaller("second_text")
target_text = methodcaller("target_text")
labels_of = methodcaller("target_labels")
words_of = methodcaller("words")
signal_of = methodcaller("signal")
