"""Strings: several files with a class each joined into one example, such as spoken digits."""

import re
from collections.abc import Iterable, Iterator, Sequence
from random import Random
from typing import Annotated, Any

import torch
from jaxtyping import Float, UInt8
from pydantic import AfterValidator, NonNegativeInt, PositiveInt
from torch import Tensor

from addnorm.config import config
from addnorm.data.examples import (
    Captioned,
    Clip,
    Corpus,
    Example,
    Image,
    Transcribed,
    labels_of,
    signal_digest,
)
from addnorm.data.readers.rows import Row
from addnorm.errors import InputError

SILENCE = -1.5
"""The log-mel feature of no sound at all."""


def with_one_group(pattern: str | None) -> str | None:
    """Return the pattern, checked to have one group.

    Raises `ValueError` unless it is a regular expression with one group.
    """
    if pattern is None:
        return None
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    if groups != 1:
        raise ValueError(f"has {groups} groups: put the class alone in brackets, as in '^([^_]+)_'")
    return pattern


@config
class StringsConfig:
    """Clips one after another, or images side by side, with their classes as a text to write.

    Each split makes strings of its own files alone, the same ones from the same seed: every file
    is in one string, in training in `times` strings. Clips have a random pause between them;
    images start at the left of a black picture that holds `longest` of them.
    """

    shortest: PositiveInt = 2
    """The fewest files in a string."""
    longest: PositiveInt = 5
    """The most files in a string."""
    times: PositiveInt = 1
    """How many strings of train each of its files is in."""
    separator: str = " "
    """The text between two classes."""
    group_pattern: Annotated[str | None, AfterValidator(with_one_group)] = None
    """A regular expression that finds a group, such as the speaker, in the name of a file without
    its suffix: only files of one group share a string. By default any do.
    """
    pause: tuple[NonNegativeInt, NonNegativeInt] = (5, 30)
    """The shortest and the longest pause between clips, in frames."""
    seed: int = 0
    """The seed of what follows what, and of the pauses."""

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(f"longest = {self.longest} is less than shortest = {self.shortest}")
        if self.pause[0] > self.pause[1]:
            raise ValueError(f"pause = {list(self.pause)} ends before it begins")

    def rows(self, split: str, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the strings made from a split's rows; skipped rows are passed on."""
        groups: dict[str, list[tuple[str, Example]]] = {}
        for row in rows:
            if isinstance(row.content, str):
                yield row
            else:
                groups.setdefault(self.group(row), []).append((row.where, row.content))
        rng = Random(f"strings {self.seed} {split}")
        for group in groups.values():
            for _ in range(self.times if split == "train" else 1):
                for string in self.cut(group, rng):
                    where = " + ".join(where for where, _ in string)
                    yield Row(where, self.joined([example for _, example in string], rng))

    def corpus(self, corpus: Corpus) -> Corpus:
        """Return the strings of each split of a corpus; its reports count single images.

        Raises `InputError` for `group_pattern`: an image of an array has no name.
        """
        if self.group_pattern is not None:
            raise InputError("data.strings.group_pattern: images of an array have no names")
        splits: dict[str, Any] = {}
        pieces: dict[str, list[str]] = {}
        for split, examples in corpus.splits.items():
            pieces[split] = [signal_digest(example) for example in examples]
            rows = self.rows(split, (Row("", example) for example in examples))
            splits[split] = [row.content for row in rows]
        return Corpus(**splits, reports=corpus.reports, pieces=pieces)

    def group(self, row: Row) -> str:
        """Return the group in a file's name, from which strings are formed.

        Raises `InputError` if there is none.
        """
        if self.group_pattern is None:
            return ""
        if row.file is None:
            raise InputError(
                f"{row.where}: data.strings.group_pattern finds groups in the names of files, and "
                "this one has no name: the table holds the file itself"
            )
        match = re.search(self.group_pattern, row.file.stem)
        if match is None:
            raise InputError(
                f"{row.where}: data.strings.group_pattern = {self.group_pattern!r} finds no group "
                f"in {row.file.stem!r}"
            )
        return match[1]

    def cut(
        self, items: Sequence[tuple[str, Example]], rng: Random
    ) -> Iterator[list[tuple[str, Example]]]:
        """Yield the items in random order, in pieces; the last one is filled up if too short."""
        order = rng.sample(items, len(items))
        start = 0
        while start < len(order):
            string = order[start : start + rng.randint(self.shortest, self.longest)]
            start += len(string)
            yield string + [rng.choice(items) for _ in range(self.shortest - len(string))]

    def joined(self, examples: Sequence[Example], rng: Random) -> Example:
        """Join several images, or several clips, into one example."""
        text = self.separator.join(label for example in examples for label in labels_of(example))
        if images := [example.pixels for example in examples if isinstance(example, Image)]:
            return Captioned(side_by_side(images, self.longest), text)
        clips = [example.frames for example in examples if isinstance(example, Clip)]
        pauses = [rng.randint(*self.pause) for _ in clips]
        return Transcribed(one_after_another(clips, pauses), text)


def side_by_side(
    images: Sequence[UInt8[Tensor, "channels height _"]], places: int
) -> UInt8[Tensor, "channels height all_of_them"]:
    """Return a picture `places` images wide: the images from the left, the rest black."""
    empty = [torch.zeros_like(images[0])] * (places - len(images))
    return torch.cat([*images, *empty], dim=-1)


def one_after_another(
    clips: Sequence[Float[Tensor, "n_mels _"]], pauses: Sequence[int]
) -> Float[Tensor, "n_mels frames"]:
    """Join the clips, with a pause between them.

    The features of a clip reach 80 dB below its loudest (`log_mel`), so those of the whole do too.
    """
    parts: list[Tensor] = []
    for clip, pause in zip(clips, pauses, strict=True):
        parts += [clip.new_full((clip.shape[0], pause), SILENCE)] if parts else []
        parts.append(clip)
    whole = torch.cat(parts, dim=-1)
    return whole.clamp(min=float(whole.max()) - 2.0)
