"""The paged key/value cache: the tokens of many texts in one buffer, found through slot numbers.

Kwon et al. 2023 (arXiv 2309.06180), section 4.1: the tokens of a text may be in any slots.
"""

from jaxtyping import Float, Int
from torch import Tensor

from addnorm.nn.attention.cached_attention import paged_attention, sinks_of
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.cache import (
    Attention,
    AttentionCache,
    MemoryAttention,
    MemoryCache,
    NewKeys,
    NewValues,
)
from addnorm.nn.context import Context, Memory
from addnorm.nn.types import Heads, Keys, KeysValues, Length, Queries

SlotKeys = Float[Tensor, "slots kv_heads d_head"]
"""The keys in each slot of a buffer; the last slot is for padding."""

SlotValues = Float[Tensor, "slots kv_heads d_value"]
"""The values in each slot, likewise."""

TextSlots = Int[Tensor, "rows so_far"]
"""The slots of a batch of texts, padded on the left, with those of the new tokens at the end."""

MemorySlots = Int[Tensor, "memories memory_seq"]
"""The slots of a batch of encoded sources, padded on the right."""


class PagedCache(AttentionCache):
    """The cache of one layer for one step of a batch of texts.

    The keys and values of each text are gathered from their slots. Every core, score, position and
    mask then sees a padded batch, so that it works unchanged. With a `score` (`operator_scores`),
    attention of one new token a text reads them where they are.
    """

    def __init__(
        self,
        keys: SlotKeys,
        values: SlotValues,
        slots: TextSlots,
        score: DotProduct | None = None,
    ) -> None:
        self._keys = keys
        self._values = values
        self._slots = slots
        self._score = score

    def append(self, k: NewKeys, v: NewValues, within: Length | None = None) -> KeysValues:
        """Store the new keys and values; return those of the last `within` slots."""
        self._write(k, v)
        return self.read(self._slots.shape[1] if within is None else within)

    def read(self, n: Length) -> KeysValues:
        """The keys and values of the last `n` slots."""
        slots = self._last(n)
        return self._keys[slots].transpose(1, 2), self._values[slots].transpose(1, 2)

    def attend(self, attention: Attention, q: Queries, k: Keys, v: Keys, ctx: Context) -> Heads:
        """Store the new keys and values, and attend to those within reach."""
        if self._score is None or q.shape[2] > 1:
            return super().attend(attention, q, k, v, ctx)
        self._write(k, v)
        slots, bias = self._last(ctx.within), attention.position.score_bias(q, ctx)
        sinks = sinks_of(attention.core)
        return paged_attention(
            q, self._keys, self._values, slots, ctx.mask, bias, self._score, sinks
        )

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Raise `NotImplementedError`: rows join and leave between steps."""
        raise NotImplementedError("a paged batch is chosen again for each step")

    def _write(self, k: NewKeys, v: NewValues) -> None:
        """Store the keys and values of the new tokens in their slots."""
        new = self._last(k.shape[2])
        self._keys[new] = k.transpose(1, 2)
        self._values[new] = v.transpose(1, 2)

    def _last(self, n: Length) -> TextSlots:
        """The last `n` slots of each text."""
        return self._slots[:, self._slots.shape[1] - n :]


class PagedMemory(MemoryCache):
    """The keys and values of encoded sources, for one layer and one step: written once, to slots.

    They are gathered from their slots, or with a `score` (`operator_scores`) read where they are by
    the queries of one new token a text.
    """

    def __init__(
        self,
        keys: SlotKeys,
        values: SlotValues,
        slots: MemorySlots,
        score: DotProduct | None = None,
    ) -> None:
        self._keys = keys
        self._values = values
        self._slots = slots
        self._score = score

    @property
    def kept(self) -> KeysValues:
        """The keys and values of all sources."""
        return self._keys[self._slots].transpose(1, 2), self._values[self._slots].transpose(1, 2)

    def attend(self, attention: MemoryAttention, q: Queries, memory: Memory) -> Heads:
        """Attend to the keys and values of the sources, each shared by consecutive rows."""
        if self._score is None or q.shape[2] > 1:
            return attention.attend(q, *self.kept, memory.mask)
        sinks = sinks_of(attention.core)
        return paged_attention(
            q, self._keys, self._values, self._slots, memory.mask, None, self._score, sinks
        )

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Raise `NotImplementedError`: rows join and leave between steps."""
        raise NotImplementedError("a paged batch is chosen again for each step")
