"""The paged key/value cache: the tokens of many texts in one buffer, found through slot numbers."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from addnorm.nn.cache import Length, NewKeys
from addnorm.nn.types import Hidden, KeysValues


@dataclass(frozen=True)
class Slots:
    """Where the tokens of a batch of texts are, padded on the left.

    `written` has the slots of the new tokens, `past` those of the tokens before them. The number of
    slots of the buffer stands for padding.
    """

    past: Int[Tensor, "rows past"]
    written: Int[Tensor, "rows new"]


class PagedBuffer:
    """One layer's keys and values of all texts: a row for each slot, and one for padding.

    Kwon et al. 2023 (arXiv 2309.06180), section 4.1: a text's tokens may be in any slots. The
    buffer takes its shape and type from the first keys.
    """

    def __init__(self, n_slots: int) -> None:
        self.n_slots = n_slots
        self._buffers: list[Tensor] = []

    def copy(self, source: Int[Tensor, " slots"], target: Int[Tensor, " slots"]) -> None:
        """Copy the contents of some slots to others; all are read before any is written."""
        for buffer in self._buffers:
            buffer[target] = buffer[source]

    def write(self, slots: Int[Tensor, "rows new"], k: NewKeys, v: NewKeys) -> None:
        """Store the keys and values of new tokens."""
        if not self._buffers:
            self._buffers = [
                new.new_zeros(self.n_slots + 1, new.shape[1], new.shape[3]) for new in (k, v)
            ]
        for buffer, new in zip(self._buffers, (k, v), strict=True):
            buffer[slots] = new.transpose(1, 2)

    def gather(self, slots: Int[Tensor, "rows kv_seq"]) -> KeysValues:
        """The keys and values of these slots of each text, brought together."""
        keys, values = (buffer[slots].transpose(1, 2) for buffer in self._buffers)
        return keys, values


class GatheredCache:
    """The cache of one layer for one step of a batch of texts, gathered from their slots.

    Every core, score, position and mask sees the keys and values of a padded batch, so that it
    works unchanged.
    """

    def __init__(self, buffer: PagedBuffer, slots: Slots) -> None:
        self._buffer = buffer
        self._slots = slots

    def source(self, x: Hidden, within: Length | None = None) -> Hidden:
        """The hidden states that keys and values are projected from: the new tokens alone."""
        return x

    def append(self, k: NewKeys, v: NewKeys, within: Length | None = None) -> KeysValues:
        """Store the new keys and values; return those of the last `within` slots."""
        self._buffer.write(self._slots.written, k, v)
        slots = torch.cat([self._slots.past, self._slots.written], dim=1)
        return self._buffer.gather(slots if within is None else slots[:, slots.shape[1] - within :])

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Raise `NotImplementedError`: rows join and leave between steps."""
        raise NotImplementedError("a paged batch is chosen again for each step")
