"""Keys and values in buffers of a fixed size, which a compiled graph takes and writes into."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn import functional as F

from addnorm.nn.attention.cached_attention import cached_attention, sinks_of
from addnorm.nn.attention.multihead import fold_beams, unfold_beams
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.cache import (
    Attention,
    AttentionCache,
    CrossCache,
    MemoryAttention,
    NewKeys,
    NewValues,
    capacity,
    gathered,
    last_slots,
    moved,
    with_room,
)
from addnorm.nn.context import Context, Memory
from addnorm.nn.types import Heads, Keys, KeysValues, Length, Queries, Values


class FixedCache(AttentionCache):
    """One layer's keys and values in preallocated buffers.

    `slots` holds the slot numbers of all tokens so far, including the ones about to be appended.
    The buffers and slots are tensors and everything else follows from their shapes, so that a
    compiled graph can take them as inputs. With a `score` (see `operator_scores`), attention to
    them is computed by our operator. The buffers may have fewer bits than `dtype`, the type in
    which the model computes; by default they have the same.
    """

    def __init__(
        self,
        keys: Keys,
        values: Values,
        slots: Int[Tensor, " so_far"],
        score: DotProduct | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.keys = keys
        self.values = values
        self.slots = slots
        self.dtype = dtype or keys.dtype
        self._score = score
        self._spare: list[Tensor] = []

    def append(self, k: NewKeys, v: NewValues, within: Length | None = None) -> KeysValues:
        """Write the new keys and values; return those of the last `within` slots."""
        return self._restored(self._written(k, v, within))

    def _written(self, k: NewKeys, v: NewValues, within: Length | None) -> KeysValues:
        """Write the new keys and values; return those of the last `within` slots, as views."""
        end = self.slots.shape[0]
        begin = end - k.shape[2]
        self.keys.index_copy_(2, self.slots[begin:], k.to(self.keys.dtype))
        self.values.index_copy_(2, self.slots[begin:], v.to(self.values.dtype))
        held = slice(0 if within is None else end - within, end)
        return self.keys[:, :, held], self.values[:, :, held]

    def _restored(self, stored: KeysValues) -> KeysValues:
        keys, values = stored
        return keys.to(self.dtype), values.to(self.dtype)

    def attend(self, attention: Attention, q: Queries, k: Keys, v: Keys, ctx: Context) -> Heads:
        """Write the new keys and values, and attend to them and to earlier ones."""
        if self._score is None:
            return super().attend(attention, q, k, v, ctx)
        keys, values = self._written(k, v, ctx.within)
        bias, sinks = attention.position.score_bias(q, ctx), sinks_of(attention.core)
        return cached_attention(q, keys, values, ctx.mask, bias, self._score, sinks)

    def read(self, n: Length) -> KeysValues:
        """The keys and values of the last `n` slots."""
        held = slice(self.slots.shape[0])
        return self._restored(last_slots(self.keys[:, :, held], self.values[:, :, held], n))

    def extend(self, slots: Int[Tensor, " so_far"]) -> None:
        """Set `slots`, which includes tokens about to be appended; grow the buffers if needed."""
        if slots.shape[0] > self.keys.shape[2]:
            held = slice(self.slots.shape[0])
            self.keys, self.values = (
                with_room(part[:, :, held], held.stop, slots.shape[0])
                for part in (self.keys, self.values)
            )
            self._spare = []
        self.slots = slots

    def take(self, places: Int[Tensor, "rows kept"], most: int) -> None:
        """Keep the tokens at these slots of each row, in buffers with capacity for `most`."""
        rows, n = places.shape
        padded = F.pad(places, (0, capacity(most, rows) - n))
        self.keys, self.values = (gathered(part, padded) for part in (self.keys, self.values))
        self.slots, self._spare = self.slots[:n], []

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order; rows may repeat."""
        held = slice(self.slots.shape[0])
        buffers, self._spare = moved([self.keys, self.values], self._spare, rows, held)
        self.keys, self.values = buffers


class FixedMemory(CrossCache):
    """One layer's keys and values of the encoder output, attended to by our operator."""

    def __init__(self, memory: KeysValues, score: DotProduct) -> None:
        super().__init__(memory)
        self._score = score

    def attend(self, attention: MemoryAttention, q: Queries, memory: Memory) -> Heads:
        """Attend to the keys and values, each shared by consecutive rows."""
        keys, values = self.kept
        folded, sinks = fold_beams(q, keys.shape[0]), sinks_of(attention.core)
        mixed = cached_attention(folded, keys, values, memory.mask, None, self._score, sinks)
        return unfold_beams(mixed, q.shape[0])
