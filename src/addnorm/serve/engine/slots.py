"""Keys and values for rows that share tokens: a buffer for each layer, with free slots."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakSet

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from addnorm.generate.next_token import Continuation, Translation, device_of, evaluating
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.models.step import DecoderState, TranslationState, decoder_step, translation_step
from addnorm.nn.attention import LatentAttention, SelfAttention
from addnorm.nn.blocks import Mixer
from addnorm.nn.cache import SelfCache
from addnorm.nn.paged_cache import SlotKeys, SlotValues
from addnorm.nn.types import KeysValues
from addnorm.serve.engine.paged_step import kernel_scores

AT_ONCE = 4096
"""How many free slots are looked for at once, so that few and the same are used again and again."""


Buffers = tuple[SlotKeys, SlotValues]
"""The keys and values of one layer."""


class HasSlots(Protocol):
    """Rows whose tokens are found through slots."""

    @property
    def tables(self) -> Sequence[Int[Tensor, "texts tokens"]]:
        """The slots of all tokens to which the rows refer."""
        ...


class RowBuffers:
    """The keys and values of all rows' tokens, in a buffer for each layer.

    A row refers to its tokens by their slots. Rows that continue the same text, such as the beams
    of a sentence, refer to the same slots; so rows are repeated, moved and dropped without a copy
    of keys. A slot is free again when no row refers to it. The last slot is for padding.

    `layers` are the buffers of self-attention, and `memories` those of cross-attention to encoded
    sources; where these have one shape they are the same, since a slot has one token of either.

    With `in_place`, attention of one new token a row reads keys where they are, as in `PagedStep`.
    """

    def __init__(
        self, next_token: Continuation | Translation, n_slots: int, *, in_place: bool
    ) -> None:
        self.next_token = next_token
        self.padding = n_slots
        self.rows = WeakSet[HasSlots]()
        model = next_token.model
        self.device = device_of(model)
        tokens = [*_tokens_of_layers(model)]
        self.layers = [_buffers(layer.text, n_slots) for layer in tokens]
        self.memories = [
            buffers if layer.in_one else _buffers(layer.memory, n_slots)
            for layer, buffers in zip(tokens, self.layers, strict=True)
        ]
        attentions: list[object] = [*_mixers(model)]
        stored = self.layers
        if isinstance(model, EncoderDecoderModel):
            attentions += model.cross_attentions
            stored = [*self.layers, *self.memories]
        keys = [None if pair is None else pair[0] for pair in stored]
        scores, self.why_gathered = kernel_scores(attentions, keys, in_place=in_place)
        n = len(self.layers)
        self.scores, self.memory_scores = scores[:n], scores[n:]
        self.all_in_place = None not in scores
        self._free = torch.arange(0)
        self.clear_padding()

    def take(self, n: int) -> Int[Tensor, " n"]:
        """Take free slots for `n` tokens."""
        if n > len(self._free):
            self._free = (~self._used()).nonzero()[:, 0][: max(n, AT_ONCE)]
        assert n <= len(self._free), "more tokens than there is room for"
        taken, self._free = self._free[:n], self._free[n:]
        return taken.to(self.device)

    def _used(self) -> Bool[Tensor, " slots"]:
        """Whether any row refers to each slot."""
        used = torch.zeros(self.padding + 1, dtype=torch.bool)
        for rows in self.rows:
            for table in rows.tables:
                used[table.cpu()] = True
        return used[:-1]

    @property
    def n_used(self) -> int:
        """The number of slots to which rows refer."""
        return int(self._used().sum())

    def clear_padding(self) -> None:
        """Zero the slot that padding uses."""
        for keys, values in filter(None, (*self.layers, *self.memories)):
            keys[self.padding] = 0.0
            values[self.padding] = 0.0


@dataclass(frozen=True)
class LayerToken:
    """What a layer stores for a token of the text and for one of the source; None for nothing."""

    text: KeysValues | None
    memory: KeysValues | None = None

    @property
    def in_one(self) -> bool:
        """Whether one buffer can store either."""
        if self.text is None or self.memory is None:
            return False
        return all(a.shape == b.shape for a, b in zip(self.text, self.memory, strict=True))

    @property
    def nbytes(self) -> int:
        """The bytes of one slot."""
        pairs = (self.text, None if self.in_one else self.memory)
        return sum(part.nbytes for pair in pairs if pair is not None for part in pair)


def bytes_of_slot(model: DecoderModel | EncoderDecoderModel, d_model: int) -> int:
    """The bytes of one token: its keys and values, or its hidden state if larger."""
    number = torch.finfo(next(model.parameters()).dtype).bits // 8
    return max(sum(layer.nbytes for layer in _tokens_of_layers(model)), d_model * number)


def _tokens_of_layers(model: DecoderModel | EncoderDecoderModel) -> Iterator[LayerToken]:
    """What each layer stores for a token, if all store keys and values."""
    token = torch.zeros(1, 1, dtype=torch.long, device=device_of(model))
    with torch.inference_mode(), evaluating(model):
        if isinstance(model, DecoderModel):
            caches = model.new_cache()
            decoder_step(model, token, DecoderState(cache=caches))
        else:
            state = TranslationState.start(model, token, None)
            translation_step(model, token, state)
            assert state.cache is not None
            caches = state.cache
    for in_slots, layer in zip(layers_in_slots(model), caches, strict=True):
        cache, memory = layer.self_cache, layer.cross_cache.kept
        text = cache.kept if in_slots and isinstance(cache, SelfCache) else None
        yield LayerToken(text, (memory[0], memory[1]) if memory else None)


def layers_in_slots(model: DecoderModel | EncoderDecoderModel) -> list[bool]:
    """The layers whose cache holds only the keys and values of each token."""
    return [
        isinstance(mixer, SelfAttention | LatentAttention) and type(layer.self_cache) is SelfCache
        for mixer, layer in zip(_mixers(model), model.new_cache(), strict=True)
    ]


def _mixers(model: DecoderModel | EncoderDecoderModel) -> list[Mixer]:
    """The mixers of the layers that write the text."""
    return (model.stack if isinstance(model, DecoderModel) else model.decoder).mixers


def _buffers(token: KeysValues | None, n_slots: int) -> Buffers | None:
    """Buffers for the keys and values of this many tokens, and for padding.

    Memory that is never written is never touched.
    """
    if token is None:
        return None
    keys, values = (part.new_empty(n_slots + 1, part.shape[1], part.shape[3]) for part in token)
    return keys, values
