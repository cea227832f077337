"""Writing through a compiled graph for every token: the fastest way to write on a CPU.

Writing is bound by how fast weights, keys and values are read from memory, so everything between
two products is one graph with them. A graph is for one row, where products are loops over the
weights, or for several, where they are oneDNN's (`graphs.product`).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from addnorm.errors import InputError
from addnorm.generate.graphs import Graph, compiled
from addnorm.generate.next_token import Continuation, Logits, Translation, evaluating
from addnorm.models import DecoderModel, EncoderDecoderModel, Model
from addnorm.nn.attention import SelfAttention
from addnorm.nn.blocks import Stack
from addnorm.nn.cache import CrossCache, FixedCache, KVCache, SelfCache, are_all, moved
from addnorm.nn.context import Context
from addnorm.nn.masks import Branches, Full
from addnorm.nn.moe import MixtureOfExperts
from addnorm.nn.positions.rotary import DynamicRotary
from addnorm.nn.types import Keys

Buffers = list[Float[Tensor, "rows kv_heads room d_head"]]
"""The keys and the values of the first layer, of the second, and so on."""

Memories = list[Float[Tensor, "memories kv_heads memory_seq d_head"]]
"""The same of what an encoder read."""

Slots = Int[Tensor, " so_far"]
Seen = Bool[Tensor, "rows branches slots"]
Positions = Int[Tensor, "rows slots"]

MIN_SLOTS = 256
"""For how many tokens, of all rows together, buffers have room at least."""


class CompiledContinuation(Continuation):
    """A decoder-only model goes on from its prompts; the graph is compiled once for its kind.

    By default for one text at a time; with `several` for any number of texts, or of beams, and not
    quite as fast for a single one. The first time takes up to a minute; afterwards the graph comes
    from disk. Weights that are views across a file, as GPT-2's, are copied. Raises `InputError` for
    a model that has other mixers than attention, or a mixture of experts, or is not on a CPU, and
    where there is no C++ compiler.
    """

    def __init__(self, model: DecoderModel, *, several: bool = False) -> None:
        _prepare(model, model.stack)
        super().__init__(model)
        self.several = several
        self.start([[0] * 3] * (2 if several else 1))
        held = [_axes(several, 2)] * len(self._buffers())
        lengths = _axes(several), _axes(True), _axes(several, 1) if several else None, held
        self._graph = _graph(_Continue(model), self._inputs(), lengths)

    def _next(self) -> Logits:
        _check_rows(len(self._tokens), self.several)
        if isinstance(self._cache, GraphCache):
            return self._graph(*self._inputs())
        logits = super()._next()
        self._cache = GraphCache(_some(self._cache))
        return logits

    def _inputs(self) -> tuple[Any, ...]:
        n, valid = self._tokens.shape[1], self._valid
        if self.several and valid is None:
            valid = torch.ones_like(self._tokens, dtype=torch.bool)
        return self._tokens[:, -1:].contiguous(), torch.arange(n), valid, self._buffers()

    def _buffers(self) -> Buffers:
        assert isinstance(self._cache, GraphCache)
        return self._cache.buffers(self._tokens.shape[1])


class CompiledTranslation(Translation):
    """As `CompiledContinuation`, with an encoder–decoder model that writes targets for sources.

    With `beams`, each of several sources has that many after its first token; they are branches of
    one row (see `masks.Branches`), so that none is ever moved. The model itself encodes the
    sources. Raises `InputError` where `CompiledContinuation` does, for attention that does not see
    all earlier tokens, for dynamic rotary positions, and for another number of beams.
    """

    def __init__(
        self,
        model: EncoderDecoderModel,
        bos_id: int,
        *,
        several: bool = False,
        beams: int = 1,
        never: Sequence[int] = (),
    ) -> None:
        _prepare(model, model.decoder)
        if any(pattern != Full() for pattern in model.decoder.patterns):
            raise InputError("a decoder compiles for translation where it sees all earlier tokens")
        if any(isinstance(part, DynamicRotary) for part in model.decoder.modules()):
            raise InputError(
                "dynamic rotary positions go by whole texts, and beams are parts of some"
            )
        super().__init__(model, bos_id, never=never)
        self.several = several = several or beams > 1
        self.beams = beams
        self.start([[0] * 3] * (2 if several else 1))
        self.select(torch.arange(len(self._tokens)).repeat_interleave(beams))
        self._tokens = F.pad(self._tokens, (0, 1))
        *_, memories, _, _, buffers = inputs = self._inputs()
        seen, positions = _axes(several, 2), _axes(several, 1)
        held = [_axes(several, 2)] * len(buffers)
        source = (
            _axes(several, 1),
            _axes(several, 1) if several else None,
            [held[0]] * len(memories),
        )
        self._graph = _graph(
            _Translate(model), inputs, (_axes(several), *source, seen, positions, held)
        )

    def _next(self) -> Logits:
        _check_rows(len(self._tokens), self.several)
        if isinstance(self._cache, BranchCache):
            if len(self._tokens) != self.beams * len(self._memory):
                raise InputError(f"this model is compiled for {self.beams} beams a source")
            return self._graph(*self._inputs())
        logits = super()._next()
        self._cache = BranchCache(_some(self._cache), self.beams)
        return logits

    def _inputs(self) -> tuple[Any, ...]:
        assert isinstance(self._cache, BranchCache)
        valid = self._valid
        if self.several and valid is None:
            valid = self._memory.new_ones(self._memory.shape[:2], dtype=torch.bool)
        tokens = self._tokens[:, -1].contiguous().view(len(self._memory), -1)
        return (
            *(tokens, self._memory, valid, self._cache.memories),
            *self._cache.branches(self._tokens.shape[1]),
        )


class GraphCache(KVCache):
    """What a cache keeps, as a graph takes it: in buffers that have room for more tokens."""

    def __init__(self, cache: KVCache) -> None:
        super().__init__([], length=cache.length)
        self._held = [_buffer(part, int(cache.length)) for part in _own(cache)]
        self._spare: Buffers = []

    def buffers(self, n: int) -> Buffers:
        """The keys and values of every layer with room for `n` tokens."""
        self.length = n
        if n > self._held[0].shape[2]:
            self._held = [_longer(part, n) for part in self._held]
            self._spare = []
        return self._held

    def select(
        self, rows: Int[Tensor, " rows"], memories: Int[Tensor, " memories"] | None = None
    ) -> None:
        """As `KVCache.select`."""
        self._held, self._spare = moved(self._held, self._spare, rows, slice(int(self.length)))


class BranchCache(KVCache):
    """What a cache keeps, for some branches of each row: see `masks.Branches`.

    `memories` are the keys and values of what the rows look at. A row is a sentence here: to
    `select` beams is to note where they come from. When the buffers are full, only slots that a
    branch descends from go into the next ones.
    """

    def __init__(self, cache: KVCache, branches: int) -> None:
        super().__init__([], length=cache.length)
        self.memories: Memories = [
            part.contiguous() for layer in cache for part in layer.cross_cache.kept
        ]
        n = int(cache.length)
        self._held = [_buffer(part, n) for part in _own(cache)]
        rows = self._held[0].shape[0]
        self._seen = torch.ones(rows, branches, n, dtype=torch.bool)
        self._positions = torch.arange(n).repeat(rows, 1)
        self._width = 1

    def branches(self, n: int) -> tuple[Seen, Positions, Buffers]:
        """For `n` tokens of each branch: what it sees, where that stands, and room for all of it.

        The last slots of each row are those of the new tokens, one for each branch.
        """
        if n > self.length:
            rows, branches, slots = self._seen.shape
            if slots + branches > self._held[0].shape[2]:
                self._forget()
            itself = torch.eye(branches, dtype=torch.bool).expand(rows, -1, -1)
            self._seen = torch.cat([self._seen, itself], dim=2)
            new = self._positions.new_full((rows, branches), n - 1)
            self._positions = torch.cat([self._positions, new], dim=1)
        self.length = n
        return self._seen, self._positions, self._held

    def _forget(self) -> None:
        """Leave out the slots that no branch descends from, and make room for as many again."""
        live = self._seen.any(1)
        n = int(live.sum(1).max())
        first = live.int().argsort(dim=1, descending=True, stable=True)[:, :n]
        self._seen = self._seen.gather(2, first[:, None].expand(-1, self._seen.shape[1], -1))
        self._positions = self._positions.gather(1, first)
        capacity = _capacity(2 * n + self._seen.shape[1], len(first))
        first = F.pad(first, (0, capacity - n))
        self._held = [_gathered(part, first) for part in self._held]

    def select(
        self, rows: Int[Tensor, " rows"], memories: Int[Tensor, " memories"] | None = None
    ) -> None:
        """As `KVCache.select`; the rows of one memory are its branches."""
        assert memories is not None, "branches share a memory"
        if not are_all(memories, len(self._seen)):
            self._seen, self._positions = self._seen[memories], self._positions[memories]
            self._held = [part[memories] for part in self._held]
            self.memories = [part[memories] for part in self.memories]
        parents = (rows % self._width).view(len(self._seen), -1, 1)
        self._width = parents.shape[1]
        self._seen = self._seen.gather(1, parents.expand(-1, -1, self._seen.shape[2]))


def _own(cache: KVCache) -> list[Keys]:
    return [
        part
        for layer in cache
        if isinstance(layer.self_cache, SelfCache)
        for part in layer.self_cache.kept
    ]


def _buffer(kept: Keys, n: int) -> Float[Tensor, "rows kv_heads room d_head"]:
    """The last of `n` keys or values at their places in a buffer with room for more."""
    buffer = kept.new_empty(*kept.shape[:2], _capacity(n, kept.shape[0]), kept.shape[3])
    buffer[:, :, n - kept.shape[2] : n] = kept
    return buffer


def _longer(
    buffer: Float[Tensor, "rows kv_heads room d_head"], n: int
) -> Float[Tensor, "rows kv_heads longer d_head"]:
    """The buffer with room for `n` tokens, the new ones at the end."""
    longer = buffer.new_empty(*buffer.shape[:2], _capacity(n, buffer.shape[0]), buffer.shape[3])
    longer[:, :, : buffer.shape[2]] = buffer
    return longer


def _gathered(
    buffer: Float[Tensor, "rows kv_heads room d_head"], slots: Int[Tensor, "rows room_2"]
) -> Float[Tensor, "rows kv_heads room_2 d_head"]:
    """These slots of each row."""
    rows, heads, capacity, width = buffer.shape
    first = torch.arange(rows * heads).view(rows, heads, 1) * capacity
    places = (first + slots[:, None]).flatten()
    return buffer.view(-1, width).index_select(0, places).view(rows, heads, -1, width)


def _capacity(n: int, rows: int) -> int:
    """Slots for `n` tokens of each row: a power of two, so that buffers seldom grow."""
    return max(MIN_SLOTS // rows, 32, 1 << (n - 1).bit_length())


class _Continue(nn.Module):
    """The logits after one more token of each text, whose keys and values go into the buffers."""

    def __init__(self, model: DecoderModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Int[Tensor, "rows 1"],
        slots: Slots,
        valid: Bool[Tensor, "rows so_far"] | None,
        buffers: Buffers,
    ) -> Float[Tensor, "rows vocab"]:
        layers = _fixed(self.model.stack, slots, buffers)
        return self.model.next_token_logits(
            tokens, valid, KVCache(layers, length=slots.shape[0] - 1)
        )


class _Translate(nn.Module):
    """The logits after one more token of each branch of each target."""

    def __init__(self, model: EncoderDecoderModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Int[Tensor, "rows branches"],
        memory: Float[Tensor, "rows memory_seq d_model"],
        valid: Bool[Tensor, "rows memory_seq"] | None,
        memories: Memories,
        seen: Seen,
        positions: Positions,
        buffers: Buffers,
    ) -> Float[Tensor, "beams vocab"]:
        _, branches, n = seen.shape
        layers = _fixed(self.model.decoder, torch.arange(n), buffers)
        cache = KVCache(layers, length=n - branches)
        for layer, kept in zip(cache, _pairs(memories), strict=True):
            layer.cross_cache = CrossCache(kept)
        ctx = Context.over(tokens, Branches(seen), past=cache.length)
        ctx = replace(ctx, kv_positions=positions).attending(memory, valid)
        x = self.model.decoder(self.model.target_embed(tokens, ctx), ctx, cache)
        return self.model.head(x, ctx).flatten(0, 1)


def _fixed(stack: Stack, slots: Slots, buffers: Buffers) -> list[FixedCache]:
    pairs = zip(_pairs(buffers), stack.patterns, strict=True)
    return [FixedCache(k, v, slots, pattern.reach[0]) for (k, v), pattern in pairs]


def _pairs(parts: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    return list(zip(parts[::2], parts[1::2], strict=True))


def _prepare(model: Model, stack: Stack) -> None:
    """Make weights dense: a graph reads them row by row. Raises `InputError` as documented."""
    if not all(isinstance(mixer, SelfAttention) for mixer in stack.mixers):
        raise InputError("only attention compiles for writing, and this model has other mixers")
    if any(isinstance(module, MixtureOfExperts) for module in model.modules()):
        raise InputError("a mixture of experts does not compile for writing: it splits tokens")
    if (device := next(model.parameters()).device).type != "cpu":
        raise InputError(f"compiled writing is for a CPU, and this model is on {device}")
    for weight in model.parameters():
        weight.data = weight.data.contiguous()


def _some(cache: KVCache | None) -> KVCache:
    assert cache is not None, "a compiled model keeps what it has read"
    return cache


def _check_rows(n: int, several: bool) -> None:
    if n > 1 and not several:
        raise InputError(f"this model is compiled for one text at a time, not {n}: give several")


def _axes(several: bool, *others: int) -> dict[int, Any] | None:
    """The axes of an input that may have any length: that of the rows, and others."""
    axes = (0, *others) if several else others
    return dict.fromkeys(axes, torch.export.Dim.DYNAMIC) or None


def _graph(step: nn.Module, inputs: tuple[Any, ...], lengths: tuple[Any, ...]) -> Graph:
    plain = tree_map_only(Tensor, Tensor.clone, inputs)  # the compiler takes no inference tensors
    with evaluating(step), torch.no_grad():
        return compiled(step, plain, lengths)
