"""Rows of equal length for language models: windows of a stream, or packed documents."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal, overload

import numpy as np
import torch
from jaxtyping import Int, Integer
from pydantic import PositiveInt
from torch import Tensor

from addnorm.config import config
from addnorm.data.batches.batch import (
    Batch,
    Loader,
    Loaders,
    chunks,
    epoch_random,
    shuffled,
)
from addnorm.data.example import PROPERTIES
from addnorm.data.ids.compact import Compact, Encoded
from addnorm.data.ids.encoding import IGNORE, EncodedCorpus
from addnorm.data.ids.layout import padded, tensors, with_valid
from addnorm.data.tokenizing.pieces import Ids
from addnorm.errors import InputError


class Windows(Loader[range]):
    """Rows of `seq_len` tokens from one stream: each token is a target exactly once in an epoch.

    With a seed the stream is a ring, which each epoch cuts into windows from another place and
    visits in another order. Without one, windows follow one another from the start, and the first
    token, which has no context, is not a target. The rest at the end is a shorter window, in the
    last batch. The stream is not copied from its file or memory, and has any type of integers.
    """

    def __init__(
        self,
        stream: Integer[Tensor, " seq"],
        batch_size: int,
        seq_len: int,
        *,
        seed: int | None = None,
        bos_id: int | None = None,
        pad_id: int = 0,
    ) -> None:
        self.stream = stream
        self.n_tokens = len(stream) if seed is not None else len(stream) - 1
        self.batch_size = batch_size
        self.seq_len = seq_len
        self.seed = seed
        self.bos_id = bos_id
        self.pad_id = pad_id

    def plan(self, epoch: int) -> "Cuts":
        """Return windows as ranges of the ring's positions that start in its first round."""
        rng, n = epoch_random(self.seed, epoch), self.n_tokens
        first = rng.randrange(n) if rng else 0
        order = shuffled(rng, n // self.seq_len) if rng else None
        return Cuts(n, first, self.seq_len, self.batch_size, order)

    def __len__(self) -> int:
        return len(Cuts(self.n_tokens, 0, self.seq_len, self.batch_size))

    def build(self, items: Sequence[range]) -> Batch:
        """Return the windows as rows; a shorter one is padded."""
        rows = [self.tokens(window) for window in items]
        starts = [window.start for window in items]
        return next_token_batch(rows, self.bos_id, self.pad_id, starts)

    def tokens(self, window: range) -> Int[Tensor, " _"]:
        """Return the tokens of a window and the next one; the ring wraps around at its end."""
        tokens = self.stream[window.start : window.stop + 1].long()
        beyond = window.stop + 1 - len(self.stream)
        return tokens if beyond <= 0 else torch.cat([tokens, self.stream[:beyond].long()])


def next_token_batch(
    rows: Sequence[Int[Tensor, " _"]], bos_id: int | None, pad_id: int, indices: list[int]
) -> Batch:
    """Return the batch of rows with next tokens as targets, padded to the longest row.

    The start of a new document, where it has a token of its own `bos_id`, is not predicted.
    """
    width = max(map(len, rows)) - 1
    targets = [row[1:] for row in rows]
    if bos_id is not None:
        targets = [row.where(row != bos_id, IGNORE) for row in targets]
    return Batch.of(
        with_valid("tokens", "valid", [row[:-1] for row in rows], pad_id, width),
        padded(targets, IGNORE, width),
        indices,
    )


class Cuts(Sequence[Sequence[range]]):
    """Batches of windows of a stream, built on access; a shorter remainder comes last."""

    def __init__(
        self, n: int, first: int, seq_len: int, batch_size: int, order: Ids | None = None
    ) -> None:
        self.n = n
        self.first = first
        self.seq_len = seq_len
        self.batch_size = batch_size
        self.order = order
        self.n_windows = -(-n // seq_len)

    def __len__(self) -> int:
        return -(-self.n_windows // self.batch_size)

    @overload
    def __getitem__(self, i: int) -> list[range]: ...
    @overload
    def __getitem__(self, i: slice) -> list[Sequence[range]]: ...
    def __getitem__(self, i: int | slice) -> Sequence[Any]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        start = range(len(self))[i] * self.batch_size
        stop = min(start + self.batch_size, self.n_windows)
        return [self.window(k) for k in range(start, stop)]

    def window(self, k: int) -> range:
        """Return window number `k` in the epoch's order."""
        if self.order is not None and k < len(self.order):
            k = int(self.order[k])
        offset = self.seq_len * k
        start = (self.first + offset) % self.n
        return range(start, start + min(self.seq_len, self.n - offset))


@config
class WindowsConfig:
    """For language models on long texts: `batch_size` contiguous windows of `seq_len` tokens.

    `documents` says how they follow one another in the stream: "marked", each between bos and eos,
    or "joined", as if they were one text. Validation takes the windows in order: its loss is that
    of the whole held-out text. A prompt begins with bos as documents do, and without it where they
    are joined or are one text, whose windows begin anywhere.
    """

    kind: Literal["windows"] = "windows"
    batch_size: PositiveInt = 16
    """Windows in a batch."""
    seq_len: PositiveInt = 256
    """Tokens in a window."""
    documents: Literal["marked", "joined"] = "marked"
    """How documents follow one another: each between bos and eos, or joined as one text."""

    def build(self, corpus: EncodedCorpus, seed: int = 0) -> Loaders:
        """Build the loaders of a language corpus; raise `InputError` for other tasks."""
        only_language(corpus, self.kind)
        return Loaders.of(corpus, seed, partial(self.windows, corpus))

    def windows(
        self, corpus: EncodedCorpus, examples: Sequence[Encoded], seed: int | None = None
    ) -> Windows:
        """Build the windows of some documents; without a seed, in order from the start."""
        _check_learnt_whole(examples)
        texts = Compact.as_documents(examples)
        ids, starts = texts.tokens.ids, texts.tokens.starts
        ends = starts + texts.tokens.lengths
        # Where one token both ends a text and begins the next, as in GPT-2, it is there once.
        shared = bool((ids[ends] == corpus.bos_id).all())
        if self.documents == "joined":
            ids = ids[1:-1] if len(texts) == 1 else np.delete(ids, np.concatenate([starts, ends]))
        elif shared and len(texts) > 1:
            ids = np.delete(ids, ends[:-1])
        if len(ids) < 2:
            raise InputError("the text is too short: a language model needs 2 tokens or more")
        return Windows(
            torch.from_numpy(ids),
            self.batch_size,
            self.seq_len,
            seed=seed,
            bos_id=None if shared else corpus.bos_id,
            pad_id=corpus.pad_id,
        )


class Packed(Loader[list[int]]):
    """Rows of `seq_len` tokens filled with whole documents; only longer documents are cut.

    Documents go, longest first, where they leave the least room (best fit). A piece of a longer one
    in which nothing is to be predicted is left out. `segments` numbers the documents of a row from
    1; padding is 0.
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
        compact = examples if isinstance(examples, Compact) else Compact.of(examples)
        self.pieces = compact.cut(seq_len).with_targets(IGNORE)

    def plan(self, epoch: int) -> list[Sequence[list[int]]]:
        """Return the rows as lists of indices of pieces."""
        rng = epoch_random(self.seed, epoch)
        order = list(range(len(self.pieces)))
        if rng:
            rng.shuffle(order)
        lengths: list[int] = self.pieces.tokens.lengths.tolist()
        # A stable sort: pieces of one length stay shuffled, and there are always as many rows.
        order.sort(key=lambda i: -lengths[i])
        rows: list[list[int]] = []
        room: list[tuple[int, int]] = []  # (free tokens, row), sorted
        for i in order:
            length = lengths[i]
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
        """Return the rows, each padded to `seq_len`."""
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
        """Build the loaders of a language corpus; raise `InputError` for other tasks."""
        only_language(corpus, self.kind)

        def packed(examples: Sequence[Encoded], seed: int | None) -> Packed:
            return Packed(examples, self.batch_size, self.seq_len, seed=seed, pad_id=corpus.pad_id)

        return Loaders.of(corpus, seed, packed)


def _check_learnt_whole(examples: Sequence[Encoded]) -> None:
    """Raise `InputError` for examples with tokens that are not targets, as in chats."""
    plain = isinstance(examples, Compact) and examples.targets.ids is examples.tokens.ids
    if not plain and any(IGNORE in example.targets for example in examples):
        raise InputError(
            'batching kind = "windows" makes every token a target, but only the answers of '
            'conversations are learnt: give kind = "tokens" or "packed"'
        )


def only_language(corpus: EncodedCorpus, kind: str) -> None:
    """Raise `InputError` for a corpus of another task."""
    if corpus.task != "language":
        other = PROPERTIES[corpus.medium].batching
        raise InputError(
            f'batching kind = "{kind}" is for language models; {corpus.task} needs kind = "{other}"'
        )
