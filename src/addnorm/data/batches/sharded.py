"""Batches of rows from shards: windows of their stream of ids, mixed and in random order."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from addnorm.data.batches.batch import Batch, Loader, Loaders, epoch_random
from addnorm.data.batches.windows import Cuts, PackedConfig, WindowsConfig, next_token_batch
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.ids.layout import padded
from addnorm.data.shards.index import ShardFolder
from addnorm.data.shards.mixture import Mixture
from addnorm.data.shards.source import ShardedTexts
from addnorm.errors import InputError


class Row(NamedTuple):
    """A row: the index of its folder, and its range in the folder's stream, which is a ring."""

    folder: int
    places: range


class ShardRows(Loader[Row]):
    """Rows of `seq_len` tokens from shards, cut in the same way as `Windows` cuts a stream.

    With a seed each folder is a ring, which each of its rounds cuts into rows from another place,
    as `Windows` does in each epoch; the rows of all folders come in the order of a `Mixture`. Any
    batch of any epoch is built by itself, and takes the same time. With `segments`, the documents
    of a row are numbered from 1, so that a token attends to its own document alone; padding is 0.
    """

    def __init__(
        self,
        texts: ShardedTexts,
        batch_size: int,
        seq_len: int,
        *,
        seed: int | None = None,
        segments: bool = False,
        pad_id: int = 0,
    ) -> None:
        self.folders = texts.folders
        self.batch_size = batch_size
        self.seq_len = seq_len
        self.seed = seed
        self.segments = segments
        self.pad_id = pad_id
        self.sizes = [folder.n_tokens - (seed is None) for folder in texts.folders]
        self.n_tokens = sum(self.sizes)
        rows = tuple(-(-n // seq_len) for n in self.sizes)
        self.mixture = Mixture(rows, texts.weights, seed)
        self._cuts = lru_cache(maxsize=256)(self.cuts)

    def plan(self, epoch: int) -> "RowBatches":
        """Return the rows of each batch."""
        return RowBatches(self, epoch)

    def __len__(self) -> int:
        return -(-len(self.mixture) // self.batch_size)

    def rows(self, epoch: int, start: int, stop: int) -> list[Row]:
        """Return the rows `start` to `stop` of an epoch."""
        places = self.mixture.at(epoch, start, stop)
        return [Row(p.folder, self._cuts(p.folder, p.round).window(p.row)) for p in places]

    def cuts(self, folder: int, n: int) -> Cuts:
        """Return the cuts of a folder's stream in its pass `n` through the data."""
        rng, size = epoch_random(self.seed, n), self.sizes[folder]
        return Cuts(size, rng.randrange(size) if rng else 0, self.seq_len, 1)

    def build(self, items: Sequence[Row]) -> Batch:
        """Return the batch of rows; a shorter one is padded."""
        rows = [self.tokens(row) for row in items]
        framing = self.folders[0].framing
        bos_id = None if framing.shared else framing.start[0]
        batch = next_token_batch(rows, bos_id, self.pad_id, [row.places.start for row in items])
        if self.segments:
            numbers = [self.numbers(row) for row in items]
            batch.inputs["segments"] = padded(numbers, 0, max(map(len, numbers)))
        return batch

    def tokens(self, row: Row) -> Int[Tensor, " _"]:
        """Return the tokens of a row and the next one; the ring wraps around at its end."""
        folder = self.folders[row.folder]
        parts = [folder.tokens(part.start, part.stop) for part in _around(folder, row.places, 1)]
        return torch.from_numpy(np.concatenate(parts).astype(np.int64))

    def numbers(self, row: Row) -> Int[Tensor, " _"]:
        """Return the document number of each token in a row, from 1."""
        folder = self.folders[row.folder]
        starts = torch.zeros(len(row.places), dtype=torch.long)
        at = 0
        for part in _around(folder, row.places, 0):
            starts[folder.starts(part.start, part.stop) - part.start + at] = 1
            starts[at] = 1  # the ring, too, begins with a document
            at += len(part)
        return starts.cumsum(0)


def _around(folder: ShardFolder, places: range, more: int) -> list[range]:
    """Return the ranges of a row extended by `more` tokens, split at the ring's end."""
    stop, n = places.stop + more, folder.n_tokens
    parts = [range(places.start, min(stop, n)), range(max(0, stop - n))]
    return [part for part in parts if part]


class RowBatches(Sequence[Sequence[Row]]):
    """The rows of each batch of an epoch, computed on access."""

    def __init__(self, loader: ShardRows, epoch: int) -> None:
        self.loader = loader
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.loader)

    @overload
    def __getitem__(self, i: int) -> list[Row]: ...
    @overload
    def __getitem__(self, i: slice) -> list[Sequence[Row]]: ...
    def __getitem__(self, i: int | slice) -> Sequence[Any]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        start = range(len(self))[i] * self.loader.batch_size
        stop = min(start + self.loader.batch_size, len(self.loader.mixture))
        return self.loader.rows(self.epoch, start, stop)


def check_rows(batching: object) -> None:
    """Raise `InputError` for kinds of batches other than rows of tokens, which shards need."""
    if not isinstance(batching, WindowsConfig | PackedConfig):
        raise InputError(
            'data.kind = "shards" needs batching kind = "windows" or "packed", whose rows are '
            "parts of the stream of ids"
        )
    if isinstance(batching, WindowsConfig) and batching.documents == "joined":
        raise InputError(
            'data.kind = "shards" has each document between its start and its end: leave '
            'batching.documents = "joined" out'
        )


def sharded_loaders(batching: object, corpus: EncodedCorpus, seed: int) -> Loaders:
    """Build the loaders of data in shards. Raises `InputError` as `check_rows`."""
    check_rows(batching)
    assert isinstance(batching, WindowsConfig | PackedConfig)

    def rows(texts: Any, seed: int | None) -> ShardRows:
        assert isinstance(texts, ShardedTexts)
        return ShardRows(
            texts,
            batching.batch_size,
            batching.seq_len,
            seed=seed,
            segments=isinstance(batching, PackedConfig),
            pad_id=corpus.pad_id,
        )

    return Loaders.of(corpus, seed, rows)
