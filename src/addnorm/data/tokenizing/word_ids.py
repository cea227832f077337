"""The ids of many texts at once: each word is encoded when first met, then looked up."""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.data.tokenizing.codecs import BETWEEN_WORDS, SPACED, together
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.data.tokenizing.word_numbers import AT_ONCE, BEGIN, WordNumbers

MOST_WORDS = 2**18
"""The number of words from which they are forgotten, to be met again."""


class WordIds:
    """Encodes texts word by word if the tokenizer allows it, else text by text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._divides = tokenizer.codec.division in (BETWEEN_WORDS, SPACED)
        self._words = _Words()

    def encode(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the ids of all texts in one array, and the number of ids in each text."""
        if not self._divides or not texts:
            return self._text_by_text(texts)
        if len(self._words.numbers) > MOST_WORDS:
            self._words = _Words()
        groups = [*together(texts, AT_ONCE)]
        words_of_groups = [*map(self._words.numbers.of, groups)]
        self._words.learn_new(self._tokenizer)
        rows = [
            self._text_by_text(group) if words is None else self._words.ids_of(*words)
            for group, words in zip(groups, words_of_groups, strict=True)
        ]
        ids, lengths = zip(*rows, strict=True)
        return np.concatenate(ids), np.concatenate(lengths)

    def _text_by_text(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[Any]]:
        rows = self._tokenizer.encode_batch(texts)
        return _flat(rows), _lengths(rows).astype(np.int64)


class _Words:
    """The words met so far, and the ids of each, in one array."""

    def __init__(self) -> None:
        self.numbers = WordNumbers()
        self.ids = np.zeros(0, np.int32)
        self.starts = np.zeros(0, np.int32)
        self.lengths = np.zeros(0, np.int32)

    def ids_of(
        self, numbers: NDArray[Any], begins: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the ids of all texts in one array, and the number of ids in each text."""
        lengths = self.lengths[numbers]
        stops = np.cumsum(lengths, dtype=np.int64)  # one text may be of any length
        shifts = self.starts[numbers] - (stops - lengths)
        ids = self.ids[np.repeat(shifts, lengths) + np.arange(stops[-1])]
        return ids, np.add.reduceat(lengths, begins, dtype=np.int64)

    def learn_new(self, tokenizer: Tokenizer) -> None:
        """Encode the words that were met since."""
        words = [word.decode() for word in islice(self.numbers, len(self.lengths), None)]
        if not words:
            return
        spaced = [w.removeprefix(BEGIN) if w.startswith(BEGIN) else f" {w}" for w in words]
        rows = tokenizer.encode_batch(spaced)
        self.ids = np.concatenate([self.ids, _flat(rows)])
        self.lengths = np.concatenate([self.lengths, _lengths(rows)])
        self.starts = np.cumsum(self.lengths, dtype=np.int32) - self.lengths


def _flat(rows: Sequence[list[int]]) -> NDArray[Any]:
    return np.fromiter(chain.from_iterable(rows), np.int32)


def _lengths(rows: Sequence[list[int]]) -> NDArray[Any]:
    return np.fromiter(map(len, rows), np.int32, len(rows))
