"""Generation with a compiled graph, the fastest way on a CPU.

Generation is bound by the memory bandwidth for weights, keys and values, so each step is compiled
into one fused graph. A graph is either for a single row, where products are loops over the weights,
or for several rows, where oneDNN computes them (`graphs.product`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from addnorm.errors import InputError
from addnorm.generate.buffers import (
    branched,
    buffers,
    computed_dtype,
    extend,
    extended,
    in_buffers,
    is_in_buffers,
    selected,
)
from addnorm.generate.graphs import Graph, compiled
from addnorm.generate.next_token import (
    Continuation,
    Logits,
    Translation,
    evaluating,
    shared_memories,
)
from addnorm.kernels.build import has_operator
from addnorm.kernels.cached_attention import DTYPES, OPERATOR
from addnorm.models import DecoderModel, EncoderDecoderModel, Model
from addnorm.models.step import (
    DecoderState,
    TranslationState,
    check_traceable,
    decoder_step,
    fixed_cache,
    pairs,
    translation_step,
)
from addnorm.nn.attention.cached_attention import operator_scores
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.blocks import Stack
from addnorm.nn.fixed_cache import FixedMemory
from addnorm.nn.masks import Branches, Full
from addnorm.nn.positions.rotary import DynamicRotary

Buffers = list[Float[Tensor, "rows kv_heads room d_head"]]
"""Keys and values, alternating, layer by layer."""

Memories = list[Float[Tensor, "memories kv_heads memory_seq d_head"]]
"""Cross-attention keys and values, alternating, layer by layer."""

Slots = Int[Tensor, " so_far"]

PURPOSE = "this model does not compile for generation"


class CompiledContinuation(Continuation):
    """Continue prompts by a compiled decoder-only model, one graph per architecture.

    By default for one text at a time; with `several` for any number of texts or beams, which is
    slightly slower for a single text. Compilation takes up to a minute; afterwards the graph is
    loaded from disk. Weights that are not contiguous (such as GPT-2's transposed views of the file)
    are replaced by copies. With a `cache_dtype`, which is `torch.bfloat16`, keys and values are
    rounded as they are kept, and attention reads half as much. A mixture of experts computes all
    its experts in a graph. Raises `InputError` for a model with mixers other than attention, or not
    on a CPU, for another type of the cache, and if there is no C++ compiler.
    """

    def __init__(
        self,
        model: DecoderModel,
        *,
        several: bool = False,
        never: Sequence[int] = (),
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        check_compilable(PURPOSE, model, model)
        if cache_dtype not in (None, torch.bfloat16):
            raise InputError(f"keys and values are kept in torch.bfloat16, not {cache_dtype}")
        super().__init__(model, never=never)
        self.several = several
        self._cache_dtype = cache_dtype
        self.start([[0] * 3] * (2 if several else 1))
        *_, of_cache = inputs = self._inputs()
        rows, valid = dynamic_axes(several), dynamic_axes(several, 1) if several else None
        lengths = rows, dynamic_axes(True), valid, [dynamic_axes(several, 2)] * len(of_cache)
        dtype = computed_dtype(self._state.cache)
        if cache_dtype is not None and dtype not in (None, *DTYPES):
            raise InputError(f"a model in {dtype} keeps its keys and values in that type")
        step = _DecoderStep(model, of_cache, dtype)
        self._graph = _graph(step, inputs, lengths)

    def _step(self) -> Logits:
        _check_rows(len(self._unread), self.several)
        cache = self._state.cache
        assert cache is not None
        if is_in_buffers(cache):
            logits = self._graph(*self._inputs())
            cache.advance(1)
            self._state = self._state.extended()
            return logits
        logits = super()._step()
        valid = self._state.valid
        if self.several and valid is None:  # a graph for several texts requires a padding mask
            n = int(cache.length)
            valid = torch.ones(len(self._unread), n + 1, dtype=torch.bool)
        self._state = DecoderState(cache=in_buffers(cache, self._cache_dtype), valid=valid)
        return logits

    def _inputs(self) -> tuple[Any, ...]:
        cache = self._state.cache
        assert cache is not None
        slots = extend(cache, int(cache.length) + 1)
        return self._unread[:, -1:].contiguous(), slots, self._state.valid, buffers(cache)


class CompiledTranslation(Translation):
    """Like `CompiledContinuation`, for an encoder–decoder model.

    With `beams`, each source has that many hypotheses after its first token; they are branches of
    one row (see `masks.Branches`), so that no cache is copied. The encoder runs eagerly. Raises
    `InputError` as `CompiledContinuation` does, and for decoder attention that is restricted by a
    pattern, dynamic rotary positions, or a different number of beams.
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
        check_compilable(PURPOSE, model, model.target_embed, model.decoder, model.head)
        for i, pattern in enumerate(model.decoder.patterns):
            if pattern != Full():
                raise InputError(
                    "a decoder compiles for translation only if each layer sees all earlier "
                    f"tokens, and layer {i} does not"
                )
        if any(isinstance(part, DynamicRotary) for part in model.decoder.modules()):
            raise InputError(
                "dynamic rotary positions depend on the length of a whole text, which the beams "
                "of a compiled translation share"
            )
        super().__init__(model, bos_id, never=never)
        self.several = several = several or beams > 1
        self.beams = beams
        self.start([[0] * 3] * (2 if several else 1))
        self.select(torch.arange(len(self._unread)).repeat_interleave(beams))
        inputs = self._inputs()
        rows, valid = dynamic_axes(several), dynamic_axes(several, 1) if several else None
        of_cache = [dynamic_axes(several, 2)] * len(inputs[-1])
        branches = dynamic_axes(several, 2), dynamic_axes(several, 1)
        lengths = rows, valid, of_cache, *branches, of_cache
        step = _TranslationStep(model, inputs[2], inputs[-1])
        self._graph = _graph(step, inputs, lengths)

    def _step(self) -> Logits:
        _check_rows(len(self._unread), self.several)
        if self._state.branches is None:
            logits = super()._step()
            self._state = branched(self._in_graph(), self.beams)
            return logits
        if len(self._unread) != self.beams * len(self._state.memory):
            raise InputError(f"this model is compiled for {self.beams} beams a source")
        logits = self._graph(*self._inputs())
        assert self._state.cache is not None
        self._state.cache.advance(self.beams)
        return logits

    def _in_graph(self) -> TranslationState:
        """The state for the graph; with several sources it needs a padding mask."""
        if not self.several or self._state.source_valid is not None:
            return self._state
        valid = torch.ones(self._state.memory.shape[:2], dtype=torch.bool)
        return replace(self._state, source_valid=valid)

    def _selected(self, rows: Int[Tensor, " kept"], sharing: int) -> TranslationState:
        memories = shared_memories(rows // sharing)
        return selected(self._state, rows % sharing, memories)

    def _inputs(self) -> tuple[Any, ...]:
        self._state = state = extended(self._state)
        assert state.cache is not None
        assert state.branches is not None
        tokens = self._unread[:, -1].contiguous().view(len(state.memory), -1)
        memories = [part for layer in state.cache for part in layer.cross_cache.kept]
        branches = state.branches.seen, state.branches.positions
        return tokens, state.source_valid, memories, *branches, buffers(state.cache)


class _DecoderStep(nn.Module):
    """`decoder_step` with one new token per text, whose keys and values go into the buffers."""

    def __init__(self, model: DecoderModel, buffers: Buffers, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.model = model
        self.dtype = dtype
        self.scores = _scores(_storing(model.stack), buffers)

    def forward(
        self,
        tokens: Int[Tensor, "rows 1"],
        slots: Slots,
        valid: Bool[Tensor, "rows so_far"] | None,
        buffers: Buffers,
    ) -> Float[Tensor, "rows vocab"]:
        cache = fixed_cache(self.model.stack, buffers, slots, 1, self.scores, self.dtype)
        return decoder_step(self.model, tokens, DecoderState(cache=cache, valid=valid))[0][:, -1]


class _TranslationStep(nn.Module):
    """`translation_step` with one new token per branch of each target."""

    def __init__(self, model: EncoderDecoderModel, memories: Memories, buffers: Buffers) -> None:
        super().__init__()
        self.model = model
        self.scores = _scores(_storing(model.decoder), buffers)
        self.memory_scores = _scores(model.cross_attentions, memories)

    def forward(
        self,
        tokens: Int[Tensor, "rows branches"],
        valid: Bool[Tensor, "rows source_seq"] | None,
        memories: Memories,
        seen: Bool[Tensor, "rows branches slots"],
        positions: Int[Tensor, "rows slots"],
        buffers: Buffers,
    ) -> Float[Tensor, "beams vocab"]:
        _, n, slots = seen.shape
        cache = fixed_cache(self.model.decoder, buffers, torch.arange(slots), n, self.scores)
        branches, of_layers = Branches(seen, positions), pairs(memories)
        state = TranslationState.after(of_layers, valid, cache, branches)
        for layer, memory, score in zip(cache, of_layers, self.memory_scores, strict=True):
            if score is not None:
                layer.cross_cache = FixedMemory(memory, score)
        return translation_step(self.model, tokens, state)[0].flatten(0, 1)


def _storing(stack: Stack) -> Iterable[object]:
    """The mixers that have keys and values of their own."""
    return [mixer for mixer, stores in zip(stack.mixers, stack.storing, strict=True) if stores]


def _scores(attentions: Iterable[object], keys_values: Sequence[Tensor]) -> list[DotProduct | None]:
    """The score of each attention that our operator computes, None of any other."""
    scores = operator_scores(attentions, keys_values[::2])
    return scores if has_operator(OPERATOR) else [None] * len(scores)


def check_compilable(purpose: str, model: Model, *traced: nn.Module) -> None:
    """Raise `InputError` for a model that does not compile, or is not on a CPU.

    `traced` are the modules that run in the graph; the message begins with `purpose`.
    """
    check_traceable(purpose, *traced)
    if (device := next(model.parameters()).device).type != "cpu":
        raise InputError(f"compiled generation needs a CPU, and this model is on {device}")


def _check_rows(n: int, several: bool) -> None:
    if n > 1 and not several:
        raise InputError(f"this model is compiled for one text at a time, not {n}: give several")


def dynamic_axes(several: bool, *others: int) -> dict[int, Any] | None:
    """The dynamic axes of an input: the batch axis if `several`, and `others`."""
    axes = (0, *others) if several else others
    return dict.fromkeys(axes, torch.export.Dim.DYNAMIC) or None


def _graph(step: nn.Module, inputs: tuple[Any, ...], lengths: tuple[Any, ...]) -> Graph:
    plain = tree_map_only(Tensor, Tensor.clone, inputs)  # the compiler rejects inference tensors
    with evaluating(step), torch.no_grad():
        return compiled(step, plain, lengths)
