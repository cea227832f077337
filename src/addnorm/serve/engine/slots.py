"""Keys and values of rows that share tokens: a buffer for each layer, and which slots are free."""

from collections.abc import Iterator
from typing import Protocol
from weakref import WeakSet

import torch
from jaxtyping import Int
from torch import Tensor

from addnorm.generate.next_token import Continuation, Translation, device_of, evaluating
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.models.step import DecoderState, TranslationState, decoder_step, translation_step
from addnorm.nn.attention import LatentAttention, SelfAttention
from addnorm.nn.cache import SelfCache
from addnorm.nn.paged_cache import TextSlots
from addnorm.nn.types import KeysValues
from addnorm.serve.engine.paged_step import kernel_scores

AT_ONCE = 4096
"""How many free slots are looked for at once, so that few and the same are used again and again."""


class HasSlots(Protocol):
    """Rows of tokens that are found through slots."""

    slots: TextSlots


class RowBuffers:
    """The keys and values of the tokens of all rows, in one buffer for each layer of attention.

    A row refers to its tokens by their slots. Rows that continue the same text, such as the beams
    of a sentence, refer to the same slots; so rows are repeated, moved and dropped without a copy
    of keys. A slot is free again when no row refers to it. The last slot is for padding.

    With `in_place`, attention of one new token a row reads keys where they are, as in `PagedStep`.
    """

    def __init__(
        self, next_token: Continuation | Translation, n_slots: int, *, in_place: bool
    ) -> None:
        self.next_token = next_token
        self.padding = n_slots
        self.rows = WeakSet[HasSlots]()
        self.device = device_of(next_token.model)
        self.layers = [
            None if first is None else (_buffer(first[0], n_slots), _buffer(first[1], n_slots))
            for first in _first_keys_values(next_token.model)
        ]
        keys = [None if layer is None else layer[0] for layer in self.layers]
        self.scores, self.why_gathered = kernel_scores(next_token.model, keys, in_place=in_place)
        self._free = torch.arange(0)
        self.clear_padding()

    def take(self, n: int) -> Int[Tensor, " n"]:
        """Take free slots for `n` tokens."""
        if n > len(self._free):
            used = torch.zeros(self.padding + 1, dtype=torch.bool)
            for rows in self.rows:
                used[rows.slots.cpu()] = True
            self._free = (~used[:-1]).nonzero()[:, 0][: max(n, AT_ONCE)]
        assert n <= len(self._free), "more tokens than there is room for"
        taken, self._free = self._free[:n], self._free[n:]
        return taken.to(self.device)

    def clear_padding(self) -> None:
        """Set the slot of padding to zero."""
        for keys, values in filter(None, self.layers):
            keys[self.padding] = 0.0
            values[self.padding] = 0.0


def _first_keys_values(model: DecoderModel | EncoderDecoderModel) -> Iterator[KeysValues | None]:
    """The keys and values of one token in each layer; None where a layer keeps anything else."""
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
        cache = layer.self_cache
        yield cache.kept if in_slots and isinstance(cache, SelfCache) else None


def layers_in_slots(model: DecoderModel | EncoderDecoderModel) -> list[bool]:
    """Which layers are attention whose cache holds the keys and values of each token."""
    stack = model.stack if isinstance(model, DecoderModel) else model.decoder
    return [
        isinstance(mixer, SelfAttention | LatentAttention) and type(layer.self_cache) is SelfCache
        for mixer, layer in zip(stack.mixers, model.new_cache(), strict=True)
    ]


def _buffer(like: Tensor, n_slots: int) -> Tensor:
    """A buffer for the keys or values of so many tokens, and of padding.

    Memory that is never written is never touched.
    """
    return like.new_empty(n_slots + 1, like.shape[1], like.shape[3])
