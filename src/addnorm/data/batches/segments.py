"""Segments of documents: pieces of limited length, cut at different places in every epoch."""

from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from addnorm.data.batches.batch import epoch_random
from addnorm.data.ids.compact import Compact, Encoded
from addnorm.data.ids.encoding import EncodedCorpus, n_before
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError

Segment = Ids
"""Four numbers: a document, where the segment starts and stops in it, and a random seed."""


class Segments:
    """The documents of a split, cut into segments of at most `most` tokens that never span two.

    Each epoch cuts a long document at other places, always into as few segments as possible; so
    their number stays. Without a seed the cuts are multiples of `most`, and the seed of a segment
    is its number.
    """

    def __init__(self, examples: Sequence[Encoded], tokenizer: Tokenizer, most: int) -> None:
        texts = Compact.as_documents(examples)
        before = n_before(tokenizer)
        self.ids = texts.tokens.ids
        self.starts = texts.tokens.starts + before
        self.lengths = texts.tokens.lengths - before
        self.most = most

    def text(self, segment: Segment) -> Ids:
        """Return the ids of a segment."""
        document, start, stop, _ = segment
        first = int(self.starts[document])
        return self.ids[first + int(start) : first + int(stop)].astype(np.int64)

    def cut(self, seed: int | None, epoch: int) -> Ids:
        """Return all segments of an epoch in order."""
        rng = generator(seed, epoch)
        n = -(-self.lengths // self.most)
        # The shortest first segment that does not increase the number of segments.
        shortest = self.lengths - np.maximum(n - 1, 0) * self.most
        first = np.full_like(self.lengths, self.most)
        if rng is not None:
            first = np.where(n > 1, rng.integers(shortest, self.most, endpoint=True), self.most)
        row = np.repeat(np.arange(len(n)), n)
        k = np.arange(len(row)) - np.repeat(np.cumsum(n) - n, n)
        stops = np.minimum(first[row] + k * self.most, self.lengths[row])
        starts = np.where(k == 0, 0, first[row] + (k - 1) * self.most)
        seeds = np.arange(len(row)) if rng is None else rng.integers(2**62, size=len(row))
        return np.stack([row, starts, stops, seeds], axis=1)

    def batches(self, seed: int | None, epoch: int, size: int) -> "SegmentBatches":
        """Group segments of similar length into batches of `size`; shuffled with a seed."""
        segments, rng = self.cut(seed, epoch), generator(seed, epoch, "order")
        if rng is not None:
            segments = segments[rng.permutation(len(segments))]
        lengths = segments[:, 2] - segments[:, 1]
        segments = segments[np.argsort(-lengths, kind="stable")]
        n = -(-len(segments) // size)
        order = np.arange(n) if rng is None else rng.permutation(n)
        return SegmentBatches(segments, order, size)


class SegmentBatches(Sequence[list[Segment]]):
    """Groups of `size` segments in a given order, built on access."""

    def __init__(self, segments: Ids, order: Ids, size: int) -> None:
        self.segments = segments
        self.order = order
        self.size = size

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, i: int) -> list[Segment]: ...
    @overload
    def __getitem__(self, i: slice) -> list[list[Segment]]: ...
    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        start = int(self.order[i]) * self.size
        return [*self.segments[start : start + self.size]]


def generator(seed: int | None, epoch: int, what: str = "") -> np.random.Generator | None:
    """Return numpy's random generator for an epoch; None without a seed."""
    rng = epoch_random(seed, epoch)
    if rng is None:
        return None
    return np.random.default_rng([rng.getrandbits(64), *what.encode()])


def tokenizer_of(corpus: EncodedCorpus, kind: str) -> Tokenizer:
    """Return the tokenizer of a corpus of plain texts. Raises `InputError` for another corpus."""
    if corpus.task != "language" or corpus.tokenizer is None:
        raise InputError(
            f'batching kind = "{kind}" is for plain texts; these data are for {corpus.task}'
        )
    return corpus.tokenizer
