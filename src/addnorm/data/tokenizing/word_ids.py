"""The ids of many texts at once: each word is encoded when first met, then looked up."""

import re
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.data.tokenizing.codecs import BETWEEN_WORDS, SPACED, together
from addnorm.data.tokenizing.tokenizers import Tokenizer

ALONE = re.compile(r"(?<=\S) (?=\S)")
"""A space between two words, which belongs to the second: no token crosses the place before it."""

BEGIN = "\1"
"""The sign at the start of each text: its first word has no space before it."""

MOST_WORDS = 2**18
"""The number of words from which they are forgotten, to be met again."""

AT_ONCE = 2**16
"""The characters of texts that are split at once: their words stay in the processor's cache."""


class WordIds:
    """Encodes texts word by word if the tokenizer allows it, else text by text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._divides = tokenizer.codec.division in (BETWEEN_WORDS, SPACED)
        self._words = _Words()

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the ids of all texts in one array, and the number of ids in each text."""
        if not self._divides or not texts or any(BEGIN in text for text in texts):
            rows = self._tokenizer.encode_batch(texts)
            return _flat(rows), _lengths(rows)
        if len(self._words.numbers) > MOST_WORDS:
            self._words = _Words()
        return self._words.ids_of(texts, self._tokenizer)


def _words_of(texts: Sequence[str]) -> list[str]:
    """Return the words of texts, with a sign before each text."""
    if _has_single_spaces("".join(texts)):  # all at once is several times as fast
        return f"{BEGIN}{f' {BEGIN}'.join(texts)}".split(" ")
    words: list[str] = []
    for text in texts:
        signed = f"{BEGIN}{text}"
        words += signed.split(" ") if _has_single_spaces(text) else ALONE.split(signed)
    return words


def _has_single_spaces(text: str) -> bool:
    """Whether a text has no white space but single spaces, as printable characters have none."""
    return text.isprintable() and "  " not in text


class _Words:
    """The words met so far: the ids of each, in one array, and whether it begins a text."""

    def __init__(self) -> None:
        self.numbers = _Numbers()
        self.ids = np.zeros(0, np.int64)
        self.starts = np.zeros(0, np.int64)
        self.lengths = np.zeros(0, np.int64)
        self.begins = np.zeros(0, np.bool_)

    def ids_of(
        self, texts: Sequence[str], tokenizer: Tokenizer
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the ids of all texts in one array, and the number of ids in each text."""
        groups = map(_words_of, together(texts, AT_ONCE))
        numbers = np.concatenate([*map(self.numbers.of, groups)])
        if new := [*islice(self.numbers, len(self.lengths), None)]:
            self._learn(new, tokenizer)
        lengths = self.lengths[numbers]
        stops = np.cumsum(lengths)
        shifts = self.starts[numbers] - (stops - lengths)
        ids = self.ids[np.repeat(shifts, lengths) + np.arange(stops[-1])]
        return ids, np.add.reduceat(lengths, np.flatnonzero(self.begins[numbers]))

    def _learn(self, new: list[str], tokenizer: Tokenizer) -> None:
        begins = [word.startswith(BEGIN) for word in new]
        spaced = [
            word.removeprefix(BEGIN) if first else f" {word}"
            for word, first in zip(new, begins, strict=True)
        ]
        rows = tokenizer.encode_batch(spaced)
        self.ids = np.concatenate([self.ids, _flat(rows)])
        self.lengths = np.concatenate([self.lengths, _lengths(rows)])
        self.starts = np.cumsum(self.lengths) - self.lengths
        self.begins = np.concatenate([self.begins, begins])


class _Numbers(dict[str, int]):
    """The numbers of the words, in the order in which they were first met."""

    def of(self, words: list[str]) -> NDArray[Any]:
        """Return the number of each word."""
        return np.fromiter(map(self.__getitem__, words), np.int64, len(words))

    def __missing__(self, word: str) -> int:
        number = self[word] = len(self)
        return number


def _flat(rows: Sequence[list[int]]) -> NDArray[Any]:
    return np.fromiter(chain.from_iterable(rows), np.int64)


def _lengths(rows: Sequence[list[int]]) -> NDArray[Any]:
    return np.fromiter(map(len, rows), np.int64, len(rows))
