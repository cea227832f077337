"""What a corpus is made of: four kinds of example, three splits, and an account of every row read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from addnorm.errors import InputError

Task = Literal["language", "translation", "classification", "tagging"]


@dataclass(frozen=True, slots=True)
class Text:
    """A document for a language model."""

    text: str


@dataclass(frozen=True, slots=True)
class Pair:
    """A sentence and its translation."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Labelled:
    """A text and its class."""

    text: str
    label: str


@dataclass(frozen=True, slots=True)
class Tagged:
    """A sentence as words, and one tag for each of them."""

    tokens: tuple[str, ...]
    tags: tuple[str, ...]


Example = Text | Pair | Labelled | Tagged

TASKS: dict[type[Example], Task] = {
    Text: "language",
    Pair: "translation",
    Labelled: "classification",
    Tagged: "tagging",
}


@dataclass(frozen=True)
class Report:
    """What became of the rows of one split: `read == used + left out`, with a place for each row left out.

    `left_out` maps a reason to the places (`file:line`); `shortened` lists what was used after being
    cut to the longest length allowed.
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
        parts += [
            f"{len(at):,} left out: {reason} ({_some(at)})" for reason, at in self.left_out.items()
        ]
        if self.shortened:
            parts.append(f"{len(self.shortened):,} shortened ({_some(self.shortened)})")
        return ", ".join(parts)


def _some(places: Sequence[str]) -> str:
    return ", ".join(places[:3]) + (", …" if len(places) > 3 else "")


@dataclass(frozen=True)
class Corpus:
    """Examples of one kind in three splits, and the report on each split that was read.

    Raises `InputError` when there is nothing to train on.
    """

    train: Sequence[Example]
    valid: Sequence[Example] = ()
    test: Sequence[Example] = ()
    reports: Mapping[str, Report] = field(default_factory=dict[str, Report])

    def __post_init__(self) -> None:
        if not self.train:
            raise InputError("the corpus has no training examples")
        kinds = {type(example) for split in self.splits.values() for example in split}
        assert len(kinds) == 1, f"a corpus holds one kind of example, not {kinds}"

    @property
    def splits(self) -> dict[str, Sequence[Example]]:
        """The three splits by name, empty ones too."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    @property
    def task(self) -> Task:
        """What the examples are for."""
        return TASKS[type(self.train[0])]

    @property
    def labels(self) -> tuple[str, ...]:
        """Every class or tag of the training and validation examples, sorted; none for other tasks."""
        return tuple(
            sorted({x for split in (self.train, self.valid) for e in split for x in labels_of(e)})
        )

    def source_texts(self) -> Iterator[str]:
        """What a tokenizer (of the source, for translation) learns from: training examples only."""
        return (source_text(example) for example in self.train)

    def target_texts(self) -> Iterator[str]:
        """The training translations; nothing for other tasks."""
        return (example.target for example in self.train if isinstance(example, Pair))


def labels_of(example: Example) -> tuple[str, ...]:
    """The class or the tags of an example."""
    match example:
        case Labelled(_, label):
            return (label,)
        case Tagged(_, tags):
            return tags
        case _:
            return ()


def source_text(example: Example) -> str:
    """The text that the model reads; words are joined with spaces."""
    match example:
        case Text(text) | Labelled(text, _):
            return text
        case Pair(source, _):
            return source
        case Tagged(tokens, _):
            return " ".join(tokens)


def target_text(example: Example) -> str:
    """The text that the model writes: the translation; nothing for other tasks."""
    return example.target if isinstance(example, Pair) else ""


def words_of(example: Example) -> tuple[str, ...]:
    """The words to tag; none for other tasks."""
    return example.tokens if isinstance(example, Tagged) else ()
