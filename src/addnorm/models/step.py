"""One decoding step, `(model, tokens, state)` to `(logits, state)`: eager, compiled or exported.

The state is a frozen class of tensors. The ways of running a step differ only in the type of the
key/value cache: a growing buffer (`SelfCache`, eager), a buffer that a compiled graph writes into
(`FixedCache`), or tensors that an exported graph takes and returns (`ConcatenatedCache`). Both
steps can be traced with all lengths dynamic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.models.decoder import DecoderModel
from addnorm.models.encoder_decoder import EncoderDecoderModel
from addnorm.models.ledger import Ledger
from addnorm.nn.attention import CrossAttention, CrossLayerAttention, SelfAttention
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.audio import LogMelEmbedding
from addnorm.nn.blocks import Stack
from addnorm.nn.cache import ConcatenatedCache, KVCache
from addnorm.nn.fixed_cache import FixedCache
from addnorm.nn.masks import Branches
from addnorm.nn.no_sublayer import NoMixer
from addnorm.nn.patches import SeriesEmbedding
from addnorm.nn.types import KeysValues
from addnorm.nn.waveform import WaveformEmbedding

LAST = slice(-1, None)
EVERY = slice(None)


@dataclass(frozen=True, kw_only=True)
class DecoderState:
    """The decoding state of a decoder-only model.

    `cache` holds the keys and values of the tokens so far; without one, a step takes whole texts.
    `valid` marks the real tokens among the past and the next tokens; None means all. `texts`
    holds the number of the text that each row continues, if they are counted.
    """

    cache: KVCache | None
    valid: Bool[Tensor, "rows so_far"] | None = None
    texts: Int[Tensor, " rows"] | None = None

    def extended(self) -> "DecoderState":
        """Extend the state for one more real token per row."""
        if self.valid is None:
            return self
        more = torch.ones_like(self.valid[:, :1])
        return replace(self, valid=torch.cat([self.valid, more], dim=1))

    def select(self, rows: Int[Tensor, " kept"]) -> "DecoderState":
        """Keep these rows, in this order; rows may repeat."""
        if self.cache is not None:
            self.cache.select(rows)
        if self.valid is None and self.texts is None:
            return self
        valid = None if self.valid is None else self.valid[rows]
        return replace(self, valid=valid, texts=None if self.texts is None else self.texts[rows])


def decoder_step(
    model: DecoderModel,
    tokens: Int[Tensor, "rows new"],
    state: DecoderState,
    positions: slice = LAST,
) -> tuple[Float[Tensor, "rows chosen vocab"], DecoderState]:
    """Process `tokens`; return the logits at some of them, and the state for one more token.

    The caches of the state are updated in place.
    """
    logits = model.logits_of(positions, tokens, state.valid, state.cache)
    return logits, state.extended()


@dataclass(frozen=True, kw_only=True)
class TranslationState:
    """The decoding state of an encoder–decoder model.

    `source_valid` marks the real inputs of the source, and `valid` the real tokens among the past
    and the next of the target; None means all. `cache` holds the keys and
    values of the target tokens so far and of the memory, and then only the shape of `memory`
    matters; without a cache, a step takes whole targets. With `branches`, each new token of a row
    is the leaf of a branch, and attends to its ancestors.
    """

    memory: Float[Tensor, "memories memory_seq width"]
    source_valid: Bool[Tensor, "memories source_seq"] | None = None
    valid: Bool[Tensor, "rows so_far"] | None = None
    cache: KVCache | None = None
    branches: Branches | None = None

    @classmethod
    def start(
        cls,
        model: EncoderDecoderModel,
        source: Shaped[Tensor, "batch *input"],
        valid: Bool[Tensor, "batch source_seq"] | None,
        *,
        cached: bool = True,
    ) -> "TranslationState":
        """Encode the sources and, if `cached`, compute the cross-attention keys and values."""
        memory = model.encode(source, valid)
        if not cached:
            return cls(memory=memory, source_valid=valid)
        cache = model.new_cache()
        cache.remember(model.cross_keys_values(memory))
        shape_only = memory.new_zeros(*memory.shape[:2], 0)
        return cls(memory=shape_only, source_valid=valid, cache=cache)

    @classmethod
    def after(
        cls,
        memories: Sequence[KeysValues],
        source_valid: Bool[Tensor, "memories source_seq"] | None,
        cache: KVCache,
        branches: Branches | None = None,
    ) -> "TranslationState":
        """The state for precomputed cross-attention keys and values.

        Its `memory` has no features, so a layer that used it would fail instead of computing
        nonsense.
        """
        cache.remember(memories)
        keys = memories[0][0]
        memory = keys.new_zeros(keys.shape[0], keys.shape[2], 0)
        return cls(memory=memory, source_valid=source_valid, cache=cache, branches=branches)

    def select(
        self, rows: Int[Tensor, " kept"], memories: Int[Tensor, " memories"]
    ) -> "TranslationState":
        """Keep these rows of the target, and their memories."""
        if self.cache is not None:
            self.cache.select(rows, memories)
        valid = self.source_valid
        return replace(
            self,
            memory=self.memory[memories],
            source_valid=None if valid is None else valid[memories],
        )


def translation_step(
    model: EncoderDecoderModel, tokens: Int[Tensor, "rows new"], state: TranslationState
) -> tuple[Float[Tensor, "rows new vocab"], TranslationState]:
    """Process target `tokens`; return the logits at each, and the new state.

    The caches of the state are updated in place.
    """
    logits = model.decode(
        tokens,
        state.memory,
        state.source_valid,
        state.valid,
        cache=state.cache,
        branches=state.branches,
    )
    return logits, state


# The caches of a traced step, whose tensors are inputs of the graph.


def fixed_cache(
    stack: Stack,
    buffers: Sequence[Tensor],
    slots: Int[Tensor, " so_far"],
    n_new: int,
    scores: Sequence[DotProduct | None] = (),
    dtype: torch.dtype | None = None,
) -> KVCache:
    """A cache in preallocated buffers (keys, values, keys, …); the last `n_new` slots are empty.

    `scores` are those of layers whose attention our operator computes (see `operator_scores`); by
    default it computes none. The model computes in `dtype`, by default that of the buffers.
    """
    of_layers = pairs(buffers)
    layers = [
        FixedCache(keys, values, slots, score, dtype)
        for (keys, values), score in zip(of_layers, scores or [None] * len(of_layers), strict=True)
    ]
    return KVCache(stack.with_others(layers), length=slots.shape[0] - n_new)


def concatenated_cache(stack: Stack, past: Sequence[Tensor]) -> KVCache:
    """A cache of these tensors (keys, values, keys, …), which stay unmodified."""
    layers = [ConcatenatedCache(keys, values) for keys, values in pairs(past)]
    return KVCache(stack.with_others(layers), length=past[0].shape[2])


def pairs(tensors: Sequence[Tensor]) -> list[KeysValues]:
    """Group alternating keys and values into one pair per layer."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


# Which models can be traced.

UNTRACEABLE: dict[type[nn.Module], str] = {
    WaveformEmbedding: "a graph cannot take the samples of a sound: read tokens or images",
    LogMelEmbedding: "a graph cannot take log-mel frames as input: read tokens or images",
    SeriesEmbedding: "a graph cannot take time series as input: read tokens or images",
}
"""Modules that cannot be traced because they depend on data, with an accepted alternative."""


def check_traceable(
    purpose: str, *parts: nn.Module, fixed: tuple[type[nn.Module], ...] = ()
) -> None:
    """Raise `InputError` if these parts of a model contain something that cannot be traced.

    Inputs of the types in `fixed` have one length, with which they can be traced.

    This is the only check for compiled and exported decoding. `purpose` begins the error message,
    as in "this model cannot be compiled". Custom parts are traced as they are. Refused are hooks,
    which would run only once, while tracing, and custom attention types, whose cache is unknown.
    """
    for part in parts:
        _check_listed(Ledger(part, "a graph"))
    for part in parts:
        for path, module in part.named_modules():
            if isinstance(module, Stack):
                _check_mixers(purpose, path, module)
            if type(module) not in fixed and (reason := UNTRACEABLE.get(type(module))):
                raise InputError(f"{purpose}: {reason}")


def _check_mixers(purpose: str, path: str, stack: Stack) -> None:
    """Raise `InputError` naming the first layer whose mixer is not attention."""
    of = f" of the {path}" if path in ("encoder", "decoder") else ""
    for i, mixer in enumerate(stack.mixers):
        if isinstance(mixer, NoMixer):
            raise InputError(f"{purpose}: layer {i}{of} has no attention, as every layer must")
        if not isinstance(mixer, SelfAttention | CrossLayerAttention):
            raise InputError(
                f"{purpose}: a graph has only mixers of kind 'attention', and layer {i}{of} has a "
                f"{type(mixer).__name__}: use attention"
            )


def _check_listed(ledger: Ledger) -> None:
    for item in ledger.items.values():
        if item.kind == "hooks":
            raise ledger.refusal(item.module, item.name)
        if item.kind == "module" and isinstance(item.module, MultiHead):
            ledger.module(item.module, SelfAttention, CrossAttention)
