"""The key/value cache: each layer stores the state of past tokens, so that none is recomputed."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from addnorm.nn.context import Context, Memory
from addnorm.nn.masks import Evaluated
from addnorm.nn.positions.position import Position
from addnorm.nn.protocols import OfModules
from addnorm.nn.types import Heads, Hidden, Keys, KeysValues, Length, Queries, Values

NewKeys = Float[Tensor, "batch kv_heads seq d_head"]
NewValues = Float[Tensor, "batch kv_heads seq d_value"]

MemoryKeys = Float[Tensor, "memories kv_heads memory_seq d_head"]

MIN_SLOTS = 256
"""Minimum capacity of a growable buffer, in tokens over all rows."""


@runtime_checkable
class Cache(Protocol):
    """The state that a mixer keeps of past tokens; each kind of mixer has its own."""

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order; rows may repeat."""
        ...


@runtime_checkable
class JoinableCache(Cache, Protocol):
    """A cache to which the rows of another can be added, so that texts join a batch at any time."""

    def join(self, other: Any) -> None:
        """Add the rows of another cache of the same mixer after its own."""
        ...


@runtime_checkable
class Attention(Protocol, metaclass=OfModules):
    """Self-attention without its projections: the core, with its mask and positions."""

    core: nn.Module
    position: Position

    def attend(self, q: Queries, k: Keys, v: Keys, ctx: Context) -> Heads:
        """Attend from the new tokens to these keys and values."""
        ...


@runtime_checkable
class AttentionCache(Cache, Protocol):
    """A cache for the keys and values of self-attention."""

    def source(
        self, x: Hidden, within: Length | None = None
    ) -> Float[Tensor, "batch kv_seq d_model"]:
        """The hidden states from which keys and values are projected: here only the new tokens'."""
        return x

    def append(self, k: NewKeys, v: NewValues, within: Length | None = None) -> KeysValues:
        """Store the new keys and values; return those of the last `within` slots.

        The context says how many slots the new tokens can reach; earlier ones are never asked for
        again. By default all.
        """
        ...

    def attend(self, attention: Attention, q: Queries, k: Keys, v: Keys, ctx: Context) -> Heads:
        """Store the new keys and values, and attend to them and to earlier ones."""
        k, v = self.append(k, v, ctx.within)
        return attention.attend(q, k, v, ctx)


class PassCache(AttentionCache):
    """One layer's keys and values of a pass without a cache, which later layers read."""

    def __init__(self) -> None:
        self._stored: KeysValues | None = None

    def append(self, k: NewKeys, v: NewValues, within: Length | None = None) -> KeysValues:
        """Store all keys and values of the pass, and return them."""
        self._stored = k, v
        return k, v

    def read(self, n: Length) -> KeysValues:
        """The keys and values of the last `n` slots."""
        assert self._stored is not None, "the layer that is read runs first"
        return last_slots(*self._stored, n)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order; rows may repeat."""
        if self._stored is not None:
            k, v = self._stored
            self._stored = k.index_select(0, rows), v.index_select(0, rows)


class NoCache:
    """The cache of a mixer that stores nothing, since it reads the keys of an earlier layer."""

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Nothing to select."""

    def join(self, other: "NoCache") -> None:
        """Nothing to add."""


class SelfCache(AttentionCache):
    """One layer's keys and values in a contiguous buffer that doubles in size when full.

    Slots out of reach are not kept: when the buffer is full, or far too long after a long prompt,
    those within reach are copied to the front of a new one. Memory is O(reach), not O(tokens).
    """

    def __init__(self) -> None:
        self._first = self._end = 0
        self._buffers: list[Tensor] = []
        self._spare: list[Tensor] = []

    def append(self, k: NewKeys, v: NewValues, within: Length | None = None) -> KeysValues:
        """Store the new keys and values; return those of the last `within` slots, as views."""
        if within is not None:
            self._first = max(self._first, self._end + k.shape[2] - within)
        if not self._fits(k.shape[2]):
            self._buffers = [self._moved(i, new) for i, new in enumerate((k, v))]
            self._spare = []
            self._first, self._end = 0, self._end - self._first
        begin, self._end = self._end, self._end + k.shape[2]
        for buffer, new in zip(self._buffers, (k, v), strict=True):
            buffer[:, :, begin : self._end] = new
        return self.kept

    @property
    def kept(self) -> KeysValues:
        """The keys and values of the slots last appended and of those within their reach."""
        keys, values = self._buffers
        return keys[:, :, self._first : self._end], values[:, :, self._first : self._end]

    def read(self, n: Length) -> KeysValues:
        """The keys and values of the last `n` slots, as views."""
        return last_slots(*self.kept, n)

    def drop(self, n: int) -> None:
        """Forget the last `n` slots, which were all appended by the latest call."""
        self._end -= n

    def _fits(self, added: int) -> bool:
        """Whether `added` more slots fit into the buffer, and the buffer is not far too long."""
        if not self._buffers:
            return False
        capacity, needed = self._buffers[0].shape[2], self._end - self._first + added
        return self._end + added <= capacity <= 4 * max(needed, 16)

    def _moved(self, i: int, new: Tensor) -> Tensor:
        """Copy the slots still needed to the front of a new buffer with twice the capacity."""
        batch, heads, added, width = new.shape
        held = self._end - self._first
        buffer = new.new_empty(batch, heads, max(16, 2 * held, held + added), width)
        if self._buffers:
            buffer[:, :, :held] = self._buffers[i][:, :, self._first : self._end]
        return buffer

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order; rows may repeat."""
        held = slice(self._first, self._end)
        self._buffers, self._spare = moved(self._buffers, self._spare, rows, held)


class ConcatenatedCache(AttentionCache):
    """One layer's keys and values, to which new ones are concatenated.

    Nothing is written in place, so that a graph can take the past as inputs and return `kept` as
    outputs. All slots are kept, including those out of reach.
    """

    def __init__(self, keys: Keys, values: Values) -> None:
        self.kept: KeysValues = keys, values

    def append(self, k: NewKeys, v: NewValues, within: Length | None = None) -> KeysValues:
        """Concatenate the new keys and values; return those of the last `within` slots."""
        keys, values = self.kept
        first = 0 if within is None else keys.shape[2] + k.shape[2] - within
        self.kept = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        return self.kept[0][:, :, first:], self.kept[1][:, :, first:]

    def read(self, n: Length) -> KeysValues:
        """The keys and values of the last `n` slots."""
        return last_slots(*self.kept, n)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order; rows may repeat."""
        keys, values = self.kept
        self.kept = keys.index_select(0, rows), values.index_select(0, rows)


class SegmentMemory(AttentionCache):
    """Transformer-XL segment memory: one layer's inputs for the last `size` slots.

    `h̃ = [SG(m); h]`: keys and values come from `h̃`, queries from `h` (Dai et al. 2019, §3.2). No
    gradient flows into the memory itself.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._kept: Tensor | None = None

    def source(
        self, x: Hidden, within: Length | None = None
    ) -> Float[Tensor, "batch kv_seq d_model"]:
        """The last `within` slots of memory and new tokens; `size` of them are the next memory."""
        whole = x if self._kept is None else torch.cat([self._kept, x], dim=1)
        whole = whole if within is None else whole[:, whole.shape[1] - within :]
        self._kept = whole.detach()[:, max(whole.shape[1] - self.size, 0) :]
        return whole

    def append(self, k: Keys, v: Values, within: Length | None = None) -> KeysValues:
        """Return `k` and `v` unchanged: they already include the memory, projected again."""
        return k, v

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order; rows may repeat."""
        self._kept = None if self._kept is None else self._kept.index_select(0, rows)


@runtime_checkable
class MemoryAttention(Protocol, metaclass=OfModules):
    """Cross-attention without the projections of its queries and outputs."""

    core: nn.Module

    def remember(self, memory: Memory) -> KeysValues:
        """Project a memory to keys and values."""
        ...

    def attend(self, q: Queries, k: MemoryKeys, v: MemoryKeys, mask: Evaluated) -> Heads:
        """Attend to these keys and values; equally many consecutive rows share each memory."""
        ...


@runtime_checkable
class MemoryCache(Protocol):
    """A cache for the keys and values of cross-attention."""

    @property
    def kept(self) -> tuple[Keys, ...]:
        """The keys and values; empty before the first step."""
        ...

    def attend(self, attention: MemoryAttention, q: Queries, memory: Memory) -> Heads:
        """Attend to the keys and values of the memory."""
        ...

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these memories, in this order; they may repeat."""
        ...


class CrossCache(MemoryCache):
    """One layer's keys and values of the encoder output, projected only at the first step."""

    def __init__(self, memory: KeysValues | None = None) -> None:
        self._kept = memory

    @property
    def kept(self) -> tuple[Keys, ...]:
        """The keys and values; empty before the first step."""
        return self._kept or ()

    def attend(self, attention: MemoryAttention, q: Queries, memory: Memory) -> Heads:
        """Attend to the cached keys and values; the first time, project the memory."""
        if self._kept is None:
            self._kept = attention.remember(memory)
        return attention.attend(q, *self._kept, memory.mask)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these memories, in this order; they may repeat."""
        if self._kept is not None and not are_all(rows, self._kept[0].shape[0]):
            k, v = self._kept
            self._kept = (k.index_select(0, rows), v.index_select(0, rows))


class LayerCache:
    """The self-attention and cross-attention caches of one layer."""

    def __init__(self, self_cache: Cache) -> None:
        self.self_cache = self_cache
        self.cross_cache: MemoryCache = CrossCache()


class KVCache:
    """The caches of all layers, passed to `forward`, which appends to them.

    `length` is the number of cached slots: all tokens processed so far, or the last `limit` of
    them.
    """

    def __init__(
        self, layers: Sequence[Cache], *, length: Length = 0, limit: int | None = None
    ) -> None:
        self.layers = [LayerCache(self_cache) for self_cache in layers]
        self.limit = limit
        self.length: Length = length

    def __iter__(self) -> Iterator[LayerCache]:
        return iter(self.layers)

    def advance(self, n_tokens: Length) -> None:
        """Add `n_tokens` to the length, once every layer has processed them."""
        length = self.length + n_tokens
        self.length = length if self.limit is None else min(length, self.limit)

    def remember(self, memories: Sequence[KeysValues]) -> None:
        """Store precomputed cross-attention keys and values for each layer."""
        for layer, memory in zip(self.layers, memories, strict=True):
            layer.cross_cache = CrossCache(memory)

    def select(
        self, rows: Int[Tensor, " rows"], memories: Int[Tensor, " memories"] | None = None
    ) -> None:
        """Keep these batch rows in every layer, as beam search does with the surviving hypotheses.

        `memories` are the memories to keep, by default one for each row (see `CrossAttention`).
        """
        for layer in self.layers:
            layer.self_cache.select(rows)
            layer.cross_cache.select(rows if memories is None else memories)


def last_slots(k: Keys, v: Values, n: Length) -> KeysValues:
    """The keys and values of the last `n` slots, as views."""
    first = k.shape[2] - n
    return k[:, :, first:], v[:, :, first:]


def moved(
    buffers: list[Tensor], spare: list[Tensor], rows: Int[Tensor, " rows"], held: slice
) -> tuple[list[Tensor], list[Tensor]]:
    """Copy the slots `held` of these rows into the spare buffers, and swap the two sets.

    Beam search does this for every token, and allocating memory would cost more than the copies.
    """
    if not buffers or are_all(rows, buffers[0].shape[0]):
        return buffers, spare
    if not spare or spare[0].shape[0] < len(rows):
        spare = [buffer.new_empty(len(rows), *buffer.shape[1:]) for buffer in buffers]
    chosen = [buffer[: len(rows)] for buffer in spare]
    for old, new in zip(buffers, chosen, strict=True):
        torch.index_select(old[:, :, held], 0, rows, out=new[:, :, held])
    return chosen, buffers


def are_all(rows: Int[Tensor, " rows"], n: int) -> bool:
    """Whether `rows` are known to be 0, …, n - 1, in order.

    False on a GPU, where the wait for the answer would cost more than the copy, in each layer.
    """
    on_cpu = rows.device.type == "cpu"
    return on_cpu and len(rows) == n and torch.equal(rows, torch.arange(n, device=rows.device))


def capacity(n: int, rows: int) -> int:
    """Buffer capacity for `n` tokens per row: at least the next power of two, so growth is rare."""
    return max(MIN_SLOTS // max(rows, 1), 32, 1 << (n - 1).bit_length())


def with_room(
    last: Keys, n: int, most: int | None = None
) -> Float[Tensor, "rows kv_heads room d_head"]:
    """Copy the last of `n` keys or values to their slots in a buffer with capacity for `most`."""
    rows, heads, held, width = last.shape
    buffer = last.new_empty(rows, heads, capacity(most or n, rows), width)
    buffer[:, :, n - held : n] = last
    return buffer


def gathered(
    buffer: Float[Tensor, "rows kv_heads room d_head"], places: Int[Tensor, "rows room_2"]
) -> Float[Tensor, "rows kv_heads room_2 d_head"]:
    """Gather the given slots of each row."""
    rows, heads, room, width = buffer.shape
    first = torch.arange(rows * heads, device=buffer.device).view(rows, heads, 1) * room
    flat = (first + places[:, None]).flatten()
    return buffer.view(-1, width).index_select(0, flat).view(rows, heads, -1, width)
