"""Batches for language models in rows of one length: windows of a stream, and packed documents."""

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import torch
from jaxtyping import Int
from pydantic import PositiveInt
from torch import Tensor

from addnorm.config import config
from addnorm.data.batch import Batch, Loader, Loaders, chunks, dice, padded, tensors, with_valid
from addnorm.data.encoding import IGNORE, Encoded, EncodedCorpus
from addnorm.errors import InputError


class Windows(Loader[range]):
    """Rows of `seq_len` tokens from one stream: each token is a target exactly once in an epoch.

    With a seed the stream is a ring, which each epoch cuts into windows from another place and
    visits in another order. Without one, windows follow one another from the start, and the first
    token, which nothing precedes, is no target. What remains at the end is a shorter window, in the
    last batch.
    """

    def __init__(
        self,
        stream: Int[Tensor, " seq"],
        batch_size: int,
        seq_len: int,
        *,
        seed: int | None = None,
        bos_id: int | None = None,
        pad_id: int = 0,
    ) -> None:
        ring = seed is not None
        self.n_tokens = len(stream) if ring else len(stream) - 1
        self.stream = stream
        self.bos_id = bos_id
        self.batch_size = batch_size
        self.seq_len = seq_len
        self.seed = seed
        self.pad_id = pad_id

    def plan(self, epoch: int) -> list[Sequence[range]]:
        """Windows as ranges of places in the ring, each of which starts on its first round."""
        rng = dice(self.seed, epoch)
        n = self.n_tokens
        first = rng.randrange(n) if rng else 0
        cuts = [*range(first, first + n, self.seq_len), first + n]
        windows = [range(i % n, i % n + j - i) for i, j in pairwise(cuts)]
        rest = [windows.pop()] if n % self.seq_len else []
        if rng:
            rng.shuffle(windows)
        return chunks(windows + rest, self.batch_size)

    def between(self, start: int, stop: int) -> Int[Tensor, " _"]:
        """A part of the stream, which may run past the end of the ring."""
        over = stop - len(self.stream)
        inner = self.stream[start:stop]
        return torch.cat([inner, self.stream[:over]]) if over > 0 else inner

    def build(self, items: Sequence[range]) -> Batch:
        """The windows as rows; a shorter one is padded."""
        tokens = [self.between(window.start, window.stop) for window in items]
        targets = [self.between(window.start + 1, window.stop + 1) for window in items]
        width = max(map(len, items))
        said = padded(targets, IGNORE, width)
        if self.bos_id is not None:
            # That a new document begins is no prediction of its text.
            said = said.where(said != self.bos_id, IGNORE)
        return Batch.of(
            with_valid("tokens", "valid", tokens, self.pad_id, width),
            said,
            [window.start for window in items],
        )


@config
class WindowsConfig:
    """For language models on long texts: `batch_size` contiguous windows of `seq_len` tokens.

    `documents` says how they follow one another in the stream: "marked", each between bos and eos,
    or "joined", as if they were one text. Validation takes the windows in order: its loss is that
    of the whole held-out text.
    """

    kind: Literal["windows"] = "windows"
    batch_size: PositiveInt = 16
    """Windows in a batch."""
    seq_len: PositiveInt = 256
    """Tokens in a window."""
    documents: Literal["marked", "joined"] = "marked"
    """How documents follow one another: each between bos and eos, or joined as one text."""

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        """The loaders of a language corpus; raise `InputError` for another."""
        only_language(corpus, self.kind)
        return Loaders(
            self.windows(corpus, corpus.train, seed),
            self.windows(corpus, corpus.valid) if corpus.valid else None,
            self.windows(corpus, corpus.test) if corpus.test else None,
            corpus.reports,
        )

    def windows(
        self, corpus: EncodedCorpus, examples: Sequence[Encoded], seed: int | None = None
    ) -> Windows:
        """The windows of some documents; in one order and from the start without a seed."""
        # Where one token both ends a text and begins the next, as in GPT-2, it stands there once.
        shared = all(e.targets[-1:] == [corpus.bos_id] for e in examples)
        ids = array("i")  # four bytes a token, of which there may be millions
        for e in examples:
            ids.extend(e.tokens if self.documents == "marked" else e.tokens[1:])
            if self.documents == "marked" and not shared:
                ids.append(e.targets[-1])
        if self.documents == "marked" and shared:
            ids.append(corpus.bos_id)
        if len(ids) < 2:
            raise InputError("the text is too short: a language model needs 2 tokens or more")
        return Windows(
            torch.frombuffer(ids, dtype=torch.int32),
            self.batch_size,
            self.seq_len,
            seed=seed,
            bos_id=None if shared else corpus.bos_id,
            pad_id=corpus.pad_id,
        )


class Packed(Loader[list[int]]):
    """Rows of `seq_len` with as many whole documents as fit; only a longer one is cut.

    Documents go, longest first, where they leave the least room (best fit). `segments` numbers the
    documents of a row from 1; padding is 0.
    """

    def __init__(
        self,
        examples: Sequence[Encoded],
        batch_size: int,
        seq_len: int,
        *,
        seed: int | None = None,
        pad_id: int = 0,
    ) -> None:
        self.batch_size = batch_size
        self.seq_len = seq_len
        self.seed = seed
        self.pad_id = pad_id
        self.pieces = [
            Encoded(e.index, e.tokens[i : i + seq_len], e.targets[i : i + seq_len])
            for e in examples
            for i in range(0, len(e.tokens), seq_len)
        ]

    def plan(self, epoch: int) -> list[Sequence[list[int]]]:
        """Rows as lists of numbers of pieces."""
        rng = dice(self.seed, epoch)
        order = list(range(len(self.pieces)))
        if rng:
            rng.shuffle(order)
        # A stable sort: pieces of one length stay shuffled, and there are always as many rows.
        order.sort(key=lambda i: -len(self.pieces[i].tokens))
        rows: list[list[int]] = []
        room: list[tuple[int, int]] = []  # (what is left, row), sorted
        for i in order:
            length = len(self.pieces[i].tokens)
            at = bisect_left(room, (length, 0))
            if at == len(room):
                rows.append([i])
                insort(room, (self.seq_len - length, len(rows) - 1))
            else:
                left, row = room.pop(at)
                rows[row].append(i)
                insort(room, (left - length, row))
        if rng:
            rng.shuffle(rows)
        return chunks(rows, self.batch_size)

    def build(self, items: Sequence[list[int]]) -> Batch:
        """The rows, each filled up to `seq_len`."""
        rows = [[self.pieces[i] for i in row] for row in items]
        tokens = [[t for piece in row for t in piece.tokens] for row in rows]
        targets = [[t for piece in row for t in piece.targets] for row in rows]
        segments = [[n for n, piece in enumerate(row, 1) for _ in piece.tokens] for row in rows]
        inputs = with_valid("tokens", "valid", tensors(tokens), self.pad_id, self.seq_len)
        return Batch.of(
            {**inputs, "segments": padded(tensors(segments), 0, self.seq_len)},
            padded(tensors(targets), IGNORE, self.seq_len),
            [piece.index for row in rows for piece in row],
        )


@config
class PackedConfig:
    """For language models on many short documents: whole ones, packed into rows of `seq_len`."""

    kind: Literal["packed"] = "packed"
    batch_size: PositiveInt = 16
    """Rows in a batch."""
    seq_len: PositiveInt = 256
    """Tokens in a row, which holds as many whole documents as fit."""

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        """The loaders of a language corpus; raise `InputError` for another."""
        only_language(corpus, self.kind)
        return Loaders(
            self.packed(corpus, corpus.train, seed),
            self.packed(corpus, corpus.valid) if corpus.valid else None,
            self.packed(corpus, corpus.test) if corpus.test else None,
            corpus.reports,
        )

    def packed(
        self, corpus: EncodedCorpus, examples: Sequence[Encoded], seed: int | None = None
    ) -> Packed:
        """The rows of some documents; in one order without a seed."""
        return Packed(examples, self.batch_size, self.seq_len, seed=seed, pad_id=corpus.pad_id)


def only_language(corpus: EncodedCorpus, kind: str) -> None:
    """Raise `InputError` for a corpus of another task."""
    if corpus.task != "language":
        other = "tokens" if corpus.reads == "text" else "examples"
        raise InputError(
            f'batching kind = "{kind}" is for language models; {corpus.task} needs kind = "{other}"'
        )
