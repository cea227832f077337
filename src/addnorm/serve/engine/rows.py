"""Next-token logits for rows that join and leave at any step, for every model that writes text."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
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
from addnorm.nn.cache import Cache, JoinableCache, KVCache
from addnorm.nn.paged_cache import MemorySlots, PagedCache, PagedMemory, TextSlots
from addnorm.serve.engine.slots import RowBuffers, layers_in_slots

FEW = 2**14
"""So many slots of padding are always worth a common step."""


def why_alone(model: DecoderModel | EncoderDecoderModel) -> str | None:
    """Why a request's rows cannot be computed together with others; None if they can."""
    caches = [layer.self_cache for layer in model.new_cache()]
    for i, (in_slots, cache) in enumerate(zip(layers_in_slots(model), caches, strict=True)):
        if not in_slots and not isinstance(cache, JoinableCache):
            return f"the {type(cache).__name__} of layer {i} has no method `join`"
    return None


class Rows:
    """The rows of one batch, a `NextToken` that can be joined with another.

    Keys and values are in the slots of the buffers, those of encoded sources too: they are written
    once, and `sources` has the slots of each source, which consecutive rows share. The states of
    recurrent mixers are in their caches, which are joined by their method `join`.
    """

    def __init__(self, buffers: RowBuffers) -> None:
        self.buffers = buffers
        self.slots: TextSlots = torch.empty(0, 0, dtype=torch.long, device=buffers.device)
        self.sources: MemorySlots | None = None
        self._states: list[Cache | None] = []
        buffers.rows.add(self)

    @property
    def tables(self) -> Sequence[Int[Tensor, "texts tokens"]]:
        """The slots of the texts and of their sources."""
        return [self.slots] if self.sources is None else [self.slots, self.sources]

    def remaining_length(self, i: int, prompt: Ids) -> int:
        """The most tokens that may follow a prompt; raises `InputError` if there is no room."""
        return self.buffers.next_token.remaining_length(i, prompt)

    @torch.inference_mode()
    def start(self, prompts: Sequence[Ids]) -> Logits:
        """Process the prompts, one per row; return next-token logits, which may hold NaN."""
        next_token, device = self.buffers.next_token, self.buffers.device
        if isinstance(next_token, Translation):
            self._remember(next_token.model, prompts)
            prompts = [[next_token.bos_id]] * len(prompts)
        tokens, valid = padded(prompts, device, left=True)
        self.slots = self._taken(tokens, valid)
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

    def _remember(self, model: EncoderDecoderModel, sources: Sequence[Ids]) -> None:
        """Encode the sources, and store their keys and values in slots."""
        tokens, valid = padded(sources, self.buffers.device, left=False)
        with evaluating(model):
            layers = model.cross_keys_values(model.encode(tokens, valid))
        self.sources = slots = self._taken(tokens, valid)
        real = self._real(slots)
        for buffers, pair in zip(self.buffers.memories, layers, strict=True):
            assert buffers is not None
            for buffer, part in zip(buffers, pair, strict=True):
                buffer[slots[real]] = part.transpose(1, 2)[real]

    def _taken(
        self, tokens: Int[Tensor, "texts seq"], valid: Bool[Tensor, "texts seq"] | None
    ) -> Int[Tensor, "texts seq"]:
        """Take slots for these tokens, including padding."""
        n = tokens.numel() if valid is None else int(valid.sum())
        taken = self.buffers.take(n)
        if valid is None:
            return taken.view_as(tokens)
        slots = torch.full_like(tokens, self.buffers.padding)
        slots[valid] = taken
        return slots

    def _real(self, slots: Int[Tensor, "texts seq"]) -> Bool[Tensor, "texts seq"]:
        """The mask of the slots that are not padding."""
        return slots != self.buffers.padding

    @torch.inference_mode()
    def step(self, tokens: Int[Tensor, " rows"]) -> Logits:
        """Append one token to each row; return the logits of the next one, which may hold NaN."""
        new = self.buffers.take(len(tokens))[:, None]
        self.slots = torch.cat([self.slots, new], dim=1)
        return self._logits(tokens[:, None])

    def _logits(self, tokens: Int[Tensor, "rows new"]) -> Logits:
        model, cache = self.buffers.next_token.model, self._cache(tokens.shape[1])
        valid = self._real(self.slots)
        with evaluating(model):
            if isinstance(model, DecoderModel):
                state = DecoderState(cache=cache, valid=valid)
                return decoder_step(model, tokens, state)[0][:, -1].float()
            assert self.sources is not None
            state = TranslationState(
                memory=torch.empty(*self.sources.shape, 0, device=self.buffers.device),
                source_valid=self._real(self.sources),
                valid=valid,
                cache=cache,
            )
            return translation_step(model, tokens, state)[0][:, -1].float()

    def _cache(self, n_new: int) -> KVCache:
        """The cache for a step that reads `n_new` tokens of each row."""
        buffers, layers = self.buffers, list[Cache]()
        for buffer, score, state in zip(buffers.layers, buffers.scores, self._states, strict=True):
            if buffer is not None:
                layers.append(PagedCache(*buffer, self.slots, score))
            elif state is not None:
                layers.append(state)
        cache = KVCache(layers, length=self.slots.shape[1] - n_new)
        if self.sources is not None:
            for layer, buffer, score in zip(
                cache, buffers.memories, buffers.memory_scores, strict=True
            ):
                assert buffer is not None
                layer.cross_cache = PagedMemory(*buffer, self.sources, score)
        return cache

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Keep these rows, in this order; rows may repeat."""
        if self.sources is not None:
            sources = self.sources[shared_memories(rows // self._sharing)]
            self.sources = sources[:, : int(self._real(sources).sum(1).amax())]
        for state in filter(None, self._states):
            state.select(rows)
        slots = self.slots[rows]
        self.slots = slots[:, int(self._real(slots).any(0).long().argmax()) :]

    @property
    def _sharing(self) -> int:
        """The number of rows that share each source."""
        return 1 if self.sources is None else len(self.slots) // len(self.sources)

    def fits(self, other: "Rows") -> bool:
        """Whether a joint step pays off, since padding at most doubles the keys to copy."""
        if self.buffers.all_in_place:
            return True
        n = [len(rows.slots) * rows._width for rows in (self, other)]
        common = (len(self.slots) + len(other.slots)) * max(self._width, other._width)
        return common <= 2 * sum(n) + FEW

    @property
    def _width(self) -> int:
        return sum(table.shape[1] for table in self.tables)

    def join(self, other: "Rows") -> None:
        """Append the rows of another batch; both must have processed their prompts."""
        if self.sources is not None and other.sources is not None:
            if self._sharing != other._sharing:
                for rows in (self, other):
                    rows._share_nothing()
            self.sources = self._stacked(self.sources, other.sources, left=False)
        for state, more in zip(self._states, other._states, strict=True):
            if state is not None:
                assert isinstance(state, JoinableCache)
                assert isinstance(more, JoinableCache)
                state.join(more)
        self.slots = self._stacked(self.slots, other.slots, left=True)

    def _stacked(
        self,
        first: Int[Tensor, "some seq"],
        second: Int[Tensor, "others seq_2"],
        *,
        left: bool,
    ) -> Int[Tensor, "all longest"]:
        """Concatenate two tables, padding the narrower one on one side."""
        width = max(first.shape[1], second.shape[1])
        missing = [width - table.shape[1] for table in (first, second)]
        sides = [(n, 0) if left else (0, n) for n in missing]
        tables = zip((first, second), sides, strict=True)
        padding = self.buffers.padding
        return torch.cat([F.pad(table, side, value=padding) for table, side in tables])

    def _share_nothing(self) -> None:
        """Give each row its own table of its source."""
        if self.sources is not None:
            self.sources = self.sources.repeat_interleave(self._sharing, dim=0)
