"""Next-token logits of rows that join and leave at any step, for every kind of model of text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor
from torch.nn import functional as F

from addnorm.generate.next_token import (
    Ids,
    Logits,
    Translation,
    evaluating,
    padded,
    shared_memories,
)
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.models.step import DecoderState, TranslationState, decoder_step, translation_step
from addnorm.nn.cache import Cache, JoinableCache, KVCache, are_all
from addnorm.nn.paged_cache import PagedCache
from addnorm.nn.types import KeysValues
from addnorm.serve.engine.slots import RowBuffers, layers_in_slots

FEW = 2**14
"""So many slots of padding are always worth a common step."""


def why_alone(model: DecoderModel | EncoderDecoderModel) -> str | None:
    """Why the rows of a request cannot be computed together with others; None if they can."""
    caches = [layer.self_cache for layer in model.new_cache()]
    for i, (in_slots, cache) in enumerate(zip(layers_in_slots(model), caches, strict=True)):
        if not in_slots and not isinstance(cache, JoinableCache):
            return f"the {type(cache).__name__} of layer {i} has no method `join`"
    return None


@dataclass(frozen=True)
class Memories:
    """The cross-attention keys and values of encoded sources, padded on the right."""

    layers: Sequence[KeysValues]
    valid: Bool[Tensor, "memories memory_seq"]

    @classmethod
    def of(
        cls, model: EncoderDecoderModel, sources: Sequence[Ids], device: torch.device
    ) -> "Memories":
        """Encode the sources, once for all steps."""
        source, valid = padded(sources, device, left=False)
        layers = model.cross_keys_values(model.encode(source, valid))
        return cls(layers, torch.ones_like(source, dtype=torch.bool) if valid is None else valid)

    def __len__(self) -> int:
        return len(self.valid)

    @property
    def width(self) -> int:
        """The length of the longest source."""
        return self.valid.shape[1]

    def select(self, chosen: Int[Tensor, " memories"]) -> "Memories":
        """These memories, in this order, without padding that all have."""
        if are_all(chosen, len(self)):
            return self
        valid = self.valid[chosen]
        width = int(valid.sum(1).amax())
        layers = [(k[chosen, :, :width], v[chosen, :, :width]) for k, v in self.layers]
        return Memories(layers, valid[:, :width])

    def joined(self, other: "Memories") -> "Memories":
        """These memories, then the others."""
        layers = [
            (_stacked(k, other_k), _stacked(v, other_v))
            for (k, v), (other_k, other_v) in zip(self.layers, other.layers, strict=True)
        ]
        return Memories(layers, _stacked(self.valid[:, None], other.valid[:, None])[:, 0])


def _stacked(
    first: Shaped[Tensor, "n heads seq *d_head"], second: Shaped[Tensor, "m heads seq_2 *d_head"]
) -> Shaped[Tensor, "both heads longest *d_head"]:
    """Two batches in one, padded with zeros on the right."""
    (n, heads, seq, *width), (m, _, other_seq, *_) = first.shape, second.shape
    stacked = first.new_zeros(n + m, heads, max(seq, other_seq), *width)
    stacked[:n, :, :seq] = first
    stacked[n:, :, :other_seq] = second
    return stacked


class Rows:
    """Rows of one batch, as a `NextToken` that can be joined to another one.

    Keys and values are in the slots of the buffers, those of encoded sources in `Memories`, and
    the states of recurrent mixers in their caches, which are joined by their method `join`.
    """

    def __init__(self, buffers: RowBuffers) -> None:
        self.buffers = buffers
        self.slots = torch.empty(0, 0, dtype=torch.long, device=buffers.device)
        self._valid = torch.empty(0, 0, dtype=torch.bool, device=buffers.device)
        self._states: list[Cache | None] = []
        self._memories: Memories | None = None
        buffers.rows.add(self)

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """The maximum number of tokens that may follow a prompt; raises `InputError` for others."""
        return self.buffers.next_token.remaining_length(i, prompt)

    @torch.inference_mode()
    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Process the prompts, one per row; return next-token logits, which may hold NaN."""
        next_token, device = self.buffers.next_token, self.buffers.device
        if isinstance(next_token, Translation):
            with evaluating(next_token.model):
                self._memories = Memories.of(next_token.model, prompts, device)
            prompts = [[next_token.bos_id]] * len(prompts)
        tokens, valid = padded(prompts, device, left=True)
        self._valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        self.slots = torch.full_like(tokens, self.buffers.padding)
        self.slots[self._valid] = self.buffers.take(int(self._valid.sum()))
        self._states = [
            None if in_slots else layer.self_cache
            for in_slots, layer in zip(
                self.buffers.layers, next_token.model.new_cache(), strict=True
            )
        ]
        logits = self._logits(tokens)
        if valid is not None:
            self.buffers.clear_padding()
        return logits

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each row; return the logits of the next one, which may hold NaN."""
        new = self.buffers.take(len(tokens))[:, None]
        self.slots = torch.cat([self.slots, new], dim=1)
        self._valid = torch.cat([self._valid, torch.ones_like(self._valid[:, :1])], dim=1)
        return self._logits(tokens[:, None])

    def _logits(self, tokens: Int[Tensor, "rows new"]) -> Logits:
        model, cache = self.buffers.next_token.model, self._cache(tokens.shape[1])
        with evaluating(model):
            if isinstance(model, DecoderModel):
                state = DecoderState(cache=cache, valid=self._valid)
                return decoder_step(model, tokens, state)[0][:, -1].float()
            assert self._memories is not None
            memories = self._memories
            state = TranslationState.after(memories.layers, memories.valid, cache)
            state = replace(state, valid=self._valid)
            return translation_step(model, tokens, state)[0][:, -1].float()

    def _cache(self, n_new: int) -> KVCache:
        """The cache of a step that reads `n_new` tokens of each row."""
        buffers, layers = self.buffers, list[Cache]()
        for buffer, score, state in zip(buffers.layers, buffers.scores, self._states, strict=True):
            if buffer is not None:
                layers.append(PagedCache(*buffer, self.slots, score))
            elif state is not None:
                layers.append(state)
        return KVCache(layers, length=self.slots.shape[1] - n_new)

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows, in this order; rows may repeat."""
        if self._memories is not None:
            shared = shared_memories(rows // self._sharing)
            self._memories = self._memories.select(shared)
        for state in filter(None, self._states):
            state.select(rows)
        valid = self._valid[rows]
        used = slice(int(valid.any(0).long().argmax()), None)
        self.slots, self._valid = self.slots[rows, used], valid[:, used]

    @property
    def _sharing(self) -> int:
        """How many rows share a memory."""
        return len(self.slots) // len(self._memories or self.slots)

    def fits(self, other: "Rows") -> bool:
        """Whether the padding of a common batch is not more than its tokens."""
        n = [len(rows.slots) * rows._width for rows in (self, other)]
        common = (len(self.slots) + len(other.slots)) * max(self._width, other._width)
        return common <= 2 * sum(n) + FEW

    @property
    def _width(self) -> int:
        memories = self._memories
        return self.slots.shape[1] + (0 if memories is None else memories.width)

    def join(self, other: "Rows") -> None:
        """Add the rows of another batch after these; both have processed prompts."""
        width = max(self.slots.shape[1], other.slots.shape[1])
        sides = [(width - rows.slots.shape[1], 0) for rows in (self, other)]
        batches = [*zip((self, other), sides, strict=True)]
        if self._memories is not None and other._memories is not None:
            if self._sharing != other._sharing:
                for rows in (self, other):
                    rows._share_nothing()
            self._memories = self._memories.joined(other._memories)
        for state, more in zip(self._states, other._states, strict=True):
            if state is not None:
                assert isinstance(state, JoinableCache)
                assert isinstance(more, JoinableCache)
                state.join(more)
        padding = self.buffers.padding
        self.slots = torch.cat([F.pad(rows.slots, side, value=padding) for rows, side in batches])
        self._valid = torch.cat([F.pad(rows._valid, side) for rows, side in batches])

    def _share_nothing(self) -> None:
        """Give each row a memory of its own."""
        if self._memories is not None:
            n = torch.arange(len(self._memories), device=self.slots.device)
            self._memories = self._memories.select(n.repeat_interleave(self._sharing))
