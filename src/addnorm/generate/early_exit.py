"""Early exit: texts and tokens leave the model at the first exit that is confident enough."""

from collections import Counter
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch
from addnorm.errors import InputError
from addnorm.models.decoder import DecoderModel
from addnorm.models.encoder import EncoderModel
from addnorm.models.inputs import embedded
from addnorm.models.step import LAST, DecoderState, decoder_step
from addnorm.nn.attention import CrossLayerAttention, SelfAttention
from addnorm.nn.blocks import AnyBlock, ParallelBlock, ParallelCrossBlock
from addnorm.nn.cache import KVCache, LayerCache
from addnorm.nn.context import Context
from addnorm.nn.functional import at_least_float32
from addnorm.nn.masks import Causal
from addnorm.nn.types import Hidden

RULES = "entropy:0.3 or confidence:0.9"


@dataclass(frozen=True)
class EntropyRule:
    """Leave if `-Σ_c p_c log p_c < threshold`, in nats (Xin et al. 2020, DeeBERT, §3.2)."""

    threshold: float

    def leaves(self, logits: Float[Tensor, "*rows outputs"]) -> Bool[Tensor, "*rows"]:
        """Whether each row's entropy is below the threshold; never at threshold 0."""
        return torch.special.entr(at_least_float32(logits).softmax(-1)).sum(-1) < self.threshold


@dataclass(frozen=True)
class ConfidenceRule:
    """Leave if `p_1 - p_2 > threshold`, the two largest (Schuster et al. 2022, CALM, §3.5)."""

    threshold: float

    def leaves(self, logits: Float[Tensor, "*rows outputs"]) -> Bool[Tensor, "*rows"]:
        """Whether each row's margin is above the threshold; never at threshold 1."""
        first, second = at_least_float32(logits).softmax(-1).topk(2, dim=-1).values.unbind(-1)
        return first - second > self.threshold


ExitRule = EntropyRule | ConfidenceRule
"""Decides by the logits of an exit which rows leave there; with its strictest threshold, none."""


def exit_rule(written: str) -> ExitRule:
    """Read `entropy:0.3` or `confidence:0.9`. Raises `InputError` for anything else."""
    kind, _, number = written.partition(":")
    try:
        threshold = float(number)
    except ValueError:
        raise InputError(f"`exit = {written}`: write {RULES}") from None
    if kind == "entropy" and 0.0 <= threshold < float("inf"):
        return EntropyRule(threshold)
    if kind == "confidence" and 0.0 <= threshold <= 1.0:
        return ConfidenceRule(threshold)
    raise InputError(
        f"`exit = {written}`: write {RULES}; an entropy is at least 0, a confidence from 0 to 1"
    )


class EarlyExit:
    """Runs a model with exits, and counts the layers that each text or token used.

    Each text leaves an encoder separately, and its batch continues without it. Tokens leave
    separately too, so that no result depends on the rest of a batch; but a step of several texts
    skips layers only when all of their tokens have left.
    """

    def __init__(self, rule: ExitRule) -> None:
        self.rule = rule
        self.depths = Counter[int]()
        """The number of texts or tokens by the layers that they took."""
        self.depth_of: dict[int, int] = {}
        """The layers that each example of a classifier or tagger took, by its index."""
        self._layers = torch.zeros(0, dtype=torch.long)
        self._tokens = torch.zeros(0, dtype=torch.long)

    @torch.inference_mode()
    def logits(
        self, model: EncoderModel | DecoderModel, batch: Batch
    ) -> Float[Tensor, "batch *outputs"]:
        """The logits of a batch: for each text or token, those of the exit at which it left."""
        if isinstance(model, DecoderModel):
            logits, depths = self._language_logits(model, **batch.inputs)
            self.depths.update(depths.tolist())
            return logits
        logits, depths = self._class_logits(model, **batch.inputs)
        self.depths.update(depths.tolist())
        self.depth_of.update(zip(batch.indices, depths.tolist(), strict=True))
        return logits

    def _class_logits(
        self,
        model: EncoderModel,
        inputs: Tensor,
        valid: Bool[Tensor, "batch input_seq"] | None = None,
        types: Int[Tensor, "batch seq"] | None = None,
    ) -> tuple[Float[Tensor, "batch *outputs"], Int[Tensor, " batch"]]:
        x, ctx = embedded(model.embed, inputs, valid, types, model.mask)
        rows = torch.arange(x.shape[0], device=x.device)
        depths = torch.full_like(rows, len(model.stack.blocks))
        result: Tensor | None = None
        caches = model.stack.caches_of_pass(None)
        x, vectors = model.stack.apart(x)
        contexts = model.stack.contexts(ctx, caches, vectors)
        for layer, block in enumerate(model.stack.blocks, start=1):
            x = block(x, contexts[layer - 1], caches[layer - 1])
            if str(layer) not in model.exits:
                continue
            logits = model.exits[str(layer)](x, ctx)
            leaving = self._leaving(logits, ctx)
            if not bool(leaving.any()):
                continue
            out = logits.new_zeros(len(depths), *logits.shape[1:]) if result is None else result
            out[rows[leaving]], depths[rows[leaving]] = logits[leaving], layer
            result, rows, x = out, rows[~leaving], x[~leaving]
            if not len(rows):
                return out, depths
            valid = None if ctx.valid is None else ctx.valid[~leaving]
            ctx = Context.over(x, model.mask, valid=valid)
            for cache in filter(None, caches):
                cache.self_cache.select((~leaving).nonzero()[:, 0])
            vectors = [None if vector is None else vector[~leaving] for vector in vectors]
            contexts = model.stack.contexts(ctx, caches, vectors)
        last = model.head(model.stack.norm(x, ctx.valid), ctx)
        if result is None:
            return last, depths
        result[rows] = last
        return result, depths

    def _leaving(
        self, logits: Float[Tensor, "batch *outputs"], ctx: Context
    ) -> Bool[Tensor, " batch"]:
        """Whether each text leaves; a tagged sentence leaves once all of its tokens would."""
        leaving = self.rule.leaves(logits)
        if leaving.ndim == 1:
            return leaving
        return (leaving if ctx.valid is None else leaving | ~ctx.valid).all(1)

    def _language_logits(
        self,
        model: DecoderModel,
        tokens: Int[Tensor, "batch seq"],
        valid: Bool[Tensor, "batch seq"] | None = None,
        segments: Int[Tensor, "batch seq"] | None = None,
    ) -> tuple[Float[Tensor, "batch seq vocab"], Int[Tensor, " tokens"]]:
        """The logits of whole texts, with the states of tokens that left propagated."""
        ctx = Context.over(tokens, Causal(), valid=valid, segments=segments)
        logits, depths = self._decoded(model, model.embed(tokens, ctx), ctx, None)
        return logits, depths.flatten() if valid is None else depths[valid]

    @torch.inference_mode()
    def step(
        self,
        model: DecoderModel,
        tokens: Int[Tensor, "rows new"],
        state: DecoderState,
        positions: slice = LAST,
    ) -> tuple[Float[Tensor, "rows chosen vocab"], DecoderState]:
        """A decoding step (see `decoder_step`); new tokens may leave early, prompts may not."""
        if tokens.shape[1] > 1 or state.cache is None or not state.cache.length:
            logits, state = decoder_step(model, tokens, state, positions)
            return logits, replace(state, texts=self._start(tokens))
        past = state.cache.length
        ctx = Context.over(tokens, Causal(), valid=state.valid, past=past)
        logits, depths = self._decoded(model, model.embed(tokens, ctx), ctx, state.cache)
        self._count(depths[:, 0], state)
        return logits, state.extended()

    def _start(self, tokens: Int[Tensor, "rows new"]) -> Int[Tensor, " rows"]:
        """Forget earlier texts; return the numbers of the new texts with these prompts."""
        texts = torch.arange(len(tokens), device=tokens.device)
        self._layers, self._tokens = torch.zeros_like(texts), torch.zeros_like(texts)
        return texts

    def _count(self, depths: Int[Tensor, " rows"], state: DecoderState) -> None:
        self.depths.update(depths.tolist())
        assert state.texts is not None
        self._layers.index_add_(0, state.texts, depths)
        self._tokens.index_add_(0, state.texts, torch.ones_like(depths))

    @property
    def text_depths(self) -> list[float | None]:
        """The mean number of layers per token, for each text since the last `start`.

        In a beam search, tokens of all hypotheses count. Prompts take every layer, so the first
        token of a text does not count; None for a text without another.
        """
        totals = zip(self._layers.tolist(), self._tokens.tolist(), strict=True)
        return [layers / n if n else None for layers, n in totals]

    def _decoded(
        self, model: DecoderModel, x: Hidden, ctx: Context, cache: KVCache | None
    ) -> tuple[Float[Tensor, "batch seq vocab"], Int[Tensor, "batch seq"]]:
        """The logits of the exit at which each token left, and the number of layers it used.

        The layers above compute the keys and values that later tokens attend to from the hidden
        state with which a token left (Schuster et al. 2022, §3.1).
        """
        layers = model.stack.caches_of_pass(cache)
        x, vectors = model.stack.apart(x)
        contexts = model.stack.contexts(ctx, layers, vectors)
        left = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        real = torch.ones_like(left) if ctx.valid is None else ctx.valid
        depths = torch.full(x.shape[:2], len(model.stack.blocks), device=x.device)
        result: Tensor | None = None
        for i, block in enumerate(model.stack.blocks):
            layer = layers[i]
            if bool((left | ~real).all()):
                if layer is not None:
                    _remember(block, x, contexts[i], layer)  # pyright: ignore[reportArgumentType]
                continue
            after = block(x, contexts[i], layer)
            x = torch.where(left[..., None], x, after) if result is not None else after
            if str(i + 1) in model.exits:
                logits = model.exits[str(i + 1)](x, ctx)
                leaving = self.rule.leaves(logits) & ~left & real
                depths = torch.where(leaving, i + 1, depths)
                if result is not None or bool(leaving.any()):
                    before = logits if result is None else result
                    result = torch.where(leaving[..., None], logits, before)
                left = left | leaving
        if cache is not None:
            cache.advance(x.shape[1])
        if result is not None and bool((left | ~real).all()):
            return result, depths
        last = model.head(model.stack.norm(x, ctx.valid), ctx)
        return (last if result is None else torch.where(left[..., None], result, last)), depths

    @property
    def mean_depth(self) -> float:
        """The mean number of layers that a text or token used."""
        return sum(k * n for k, n in self.depths.items()) / max(self.depths.total(), 1)

    def __str__(self) -> str:
        """The mean depth, and the share of texts or tokens that left at each layer."""
        total = max(self.depths.total(), 1)
        shares = (f"layer {k} {n / total:.1%}" for k, n in sorted(self.depths.items()))
        return " · ".join([f"mean depth {self.mean_depth:.2f} layers", *shares])


def check_exits_early(model: nn.Module) -> None:
    """Raise `InputError` unless the model has exits and its layers can be skipped."""
    if not isinstance(model, EncoderModel | DecoderModel) or not model.exits:
        raise InputError(
            "`exit`: this model has no early exits: train one with model.exits, the layers that "
            "get their own head"
        )
    for i, block in enumerate(model.stack.blocks):
        attends = isinstance(block.attention, SelfAttention | CrossLayerAttention)
        if isinstance(model, DecoderModel) and not attends:
            raise InputError(
                f"`exit`: layer {i} is {type(block.attention).__name__}, whose state cannot skip a "
                "token: every layer of a language model must be attention"
            )


def _remember(block: AnyBlock, x: Hidden, ctx: Context, cache: LayerCache) -> None:
    """Store the keys and values that the layer computes from `x`; compute nothing else."""
    attention = block.attention
    assert isinstance(attention, SelfAttention | CrossLayerAttention)

    def store(h: Hidden) -> Hidden:
        attention.remember(h, ctx, cache.self_cache)  # pyright: ignore[reportArgumentType]
        return torch.zeros_like(h)

    h = block.norm(x, ctx.valid) if isinstance(block, ParallelBlock | ParallelCrossBlock) else x
    block.attention_residual(h, store, ctx.valid)
