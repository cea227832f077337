"""One step of decoding, `(model, tokens, state)` to `(logits, state)`: eager, compiled, exported.

The state is tensors in a frozen class. What holds the keys and values decides how they grow, and
is all that differs between the ways to run a step: a buffer that doubles (`SelfCache`, eager), one
that a compiled graph writes into (`FixedCache`), or tensors that an exported graph takes and gives
(`ConcatenatedCache`). Both steps can be traced with all lengths open.
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
from addnorm.nn.attention import CrossAttention, SelfAttention
from addnorm.nn.attention.multihead import MultiHead
from addnorm.nn.audio import LogMelEmbedding
from addnorm.nn.blocks import Stack
from addnorm.nn.cache import ConcatenatedCache, FixedCache, KVCache
from addnorm.nn.masks import Branches
from addnorm.nn.moe import MixtureOfExperts
from addnorm.nn.patches import SeriesEmbedding
from addnorm.nn.types import KeysValues

LAST = slice(-1, None)
EVERY = slice(None)


@dataclass(frozen=True, kw_only=True)
class DecoderState:
    """What a decoder-only model goes on from.

    `cache` has what its layers keep of the tokens read; without one, a step reads whole texts.
    `valid` marks the real tokens among those and the next ones to be read; None stands for "all".
    """

    cache: KVCache | None
    valid: Bool[Tensor, "rows so_far"] | None = None

    def extended(self) -> "DecoderState":
        """The state for one more real token of each row."""
        if self.valid is None:
            return self
        more = torch.ones_like(self.valid[:, :1])
        return replace(self, valid=torch.cat([self.valid, more], dim=1))

    def select(self, rows: Int[Tensor, " kept"]) -> "DecoderState":
        """These rows, in this order, repeats allowed."""
        if self.cache is not None:
            self.cache.select(rows)
        return self if self.valid is None else replace(self, valid=self.valid[rows])


def decoder_step(
    model: DecoderModel,
    tokens: Int[Tensor, "rows new"],
    state: DecoderState,
    some: slice = LAST,
) -> tuple[Float[Tensor, "rows some vocab"], DecoderState]:
    """Read `tokens`: the logits after some of them, and the state for one more token of each row.

    The caches of the state are filled as the step runs.
    """
    logits = model.logits_of(some, tokens, state.valid, state.cache)
    return logits, state.extended()


@dataclass(frozen=True, kw_only=True)
class TranslationState:
    """What an encoder–decoder model goes on from: `memory`, and what it has written.

    `source_valid` marks the real tokens of the source; None stands for "all". `cache` has the keys
    and values of the tokens read and of the memory, which is then nothing but a shape; without one,
    a step reads whole targets. Where the new tokens of a row end `branches`, those say what each
    sees.
    """

    memory: Float[Tensor, "memories memory_seq width"]
    source_valid: Bool[Tensor, "memories source_seq"] | None = None
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
        """Encode the sources; the keys and values of the memory are computed here, once."""
        memory = model.encode(source, valid)
        if not cached:
            return cls(memory=memory, source_valid=valid)
        return cls.after(model.cross_keys_values(memory), valid, model.new_cache())

    @classmethod
    def after(
        cls,
        memories: Sequence[KeysValues],
        source_valid: Bool[Tensor, "memories source_seq"] | None,
        cache: KVCache,
        branches: Branches | None = None,
    ) -> "TranslationState":
        """The state that looks at these keys and values of a memory.

        Its memory has no features: a layer that read it would fail, not err.
        """
        cache.remember(memories)
        keys = memories[0][0]
        memory = keys.new_zeros(keys.shape[0], keys.shape[2], 0)
        return cls(memory=memory, source_valid=source_valid, cache=cache, branches=branches)

    def select(
        self, rows: Int[Tensor, " kept"], memories: Int[Tensor, " memories"]
    ) -> "TranslationState":
        """These rows of what was written, and the memories that they look at."""
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
    """Read `tokens` of the targets: the logits after each, and the state after all.

    The caches of the state are filled as the step runs.
    """
    logits = model.decode(
        tokens,
        state.memory,
        state.source_valid,
        cache=state.cache,
        branches=state.branches,
    )
    return logits, state


# The caches of a traced step: their tensors are the inputs of a graph.


def fixed_cache(
    stack: Stack, buffers: Sequence[Tensor], slots: Int[Tensor, " so_far"], n_new: int
) -> KVCache:
    """A cache in buffers with room, keys and values in turn; the last `n_new` slots are empty."""
    layers = [
        FixedCache(keys, values, slots, pattern.reach[0])
        for (keys, values), pattern in zip(pairs(buffers), stack.patterns, strict=True)
    ]
    return KVCache(layers, length=slots.shape[0] - n_new)


def concatenated_cache(stack: Stack, past: Sequence[Tensor]) -> KVCache:
    """A cache of these keys and values, in turn, which it leaves as they are."""
    layers = [
        ConcatenatedCache(keys, values, pattern.reach[0])
        for (keys, values), pattern in zip(pairs(past), stack.patterns, strict=True)
    ]
    return KVCache(layers, length=past[0].shape[2])


def pairs(tensors: Sequence[Tensor]) -> list[KeysValues]:
    """The keys and values of each layer, out of both in turn."""
    return list(zip(tensors[::2], tensors[1::2], strict=True))


# What can be traced at all.

UNTRACEABLE: dict[type[nn.Module], str] = {
    MixtureOfExperts: "a mixture of experts splits its tokens as the data say: use kind = 'gated'",
    LogMelEmbedding: "log-mel frames are no input of a graph: read tokens or images",
    SeriesEmbedding: "time series are no input of a graph: read tokens or images",
}
"""Modules whose work depends on more than shapes, and what would be accepted."""


def check_traceable(purpose: str, *parts: nn.Module) -> None:
    """Raise `InputError` where these parts of a model hold what no graph can.

    Compiled and exported decoding ask this and nothing else. `purpose` says what cannot be done, as
    in "this model cannot be compiled". Parts of someone's own are traced as they are. Refused are
    hooks, which a graph would run once and never again, and attention of another type, whose cache
    is not known.
    """
    for part in parts:
        _check_listed(Ledger(part, "a graph"))
    for module in (module for part in parts for module in part.modules()):
        if isinstance(module, Stack):
            for mixer in module.mixers:
                if not isinstance(mixer, SelfAttention):
                    raise InputError(
                        f"{purpose}: only attention can be traced, and a {type(mixer).__name__} "
                        "reads its text run by run, as the data say: use attention"
                    )
        if reason := UNTRACEABLE.get(type(module)):
            raise InputError(f"{purpose}: {reason}")


def _check_listed(ledger: Ledger) -> None:
    for item in ledger.items.values():
        if item.kind == "hooks":
            raise ledger.refusal(item.module, item.name)
        if item.kind == "module" and isinstance(item.module, MultiHead):
            ledger.module(item.module, SelfAttention, CrossAttention)
