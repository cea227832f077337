"""Decoding steps give the logits of a full pass, for every cache type and chunking."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, DecoderModel, EncoderDecoderConfig, EncoderDecoderModel
from addnorm.models.step import (
    EVERY,
    DecoderState,
    TranslationState,
    check_traceable,
    concatenated_cache,
    decoder_step,
    fixed_cache,
    pairs,
    translation_step,
)
from addnorm.nn.attention import AttentionConfig, SelfAttention, WindowPatternConfig
from addnorm.nn.audio import LogMelEmbeddingConfig
from addnorm.nn.blocks import Stack
from addnorm.nn.cache import ConcatenatedCache, KVCache
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.masks import Branches
from addnorm.nn.patches import SeriesEmbeddingConfig
from addnorm.nn.positions import ALiBiConfig, LearnedConfig, RotaryConfig
from addnorm.nn.recurrent import RecurrentConfig

VOCAB = 13
SMALL = {"d_model": 16, "n_layers": 2, "max_len": 16}
HEADS = AttentionConfig(n_heads=4, n_kv_heads=2)
WINDOW = AttentionConfig(n_heads=4, n_kv_heads=2, pattern=WindowPatternConfig(size=3))
FIELDS = {
    "learned": {"position": LearnedConfig(), "attention": HEADS},
    "rotary, window": {"position": RotaryConfig(), "attention": WINDOW},
    "alibi": {"position": ALiBiConfig(), "attention": HEADS},
}
CUTS = [(0, 4), (4, 5), (5, 8), (8, 9)]
VALID = torch.arange(9) >= torch.tensor([[0], [2]])


class Caches:
    """The cache for each step, of one kind, out of what the last one left."""

    def __init__(self, kind: str, stack: Stack) -> None:
        self.kind = kind
        self.stack = stack
        self.cache = stack.new_cache()
        self.parts = [torch.zeros(2, 2, 16 if kind == "fixed" else 0, 4).double() for _ in range(4)]

    def before(self, start: int, end: int) -> KVCache:
        if self.kind == "fixed":
            return fixed_cache(self.stack, self.parts, torch.arange(end), end - start)
        if self.kind == "concatenated":
            kept = [layer.self_cache for layer in self.cache]
            parts = [
                part for one in kept if isinstance(one, ConcatenatedCache) for part in one.kept
            ]
            self.cache = concatenated_cache(self.stack, parts or self.parts)
            assert self.cache.length == start
        return self.cache


def decoder(**fields) -> DecoderModel:
    return DecoderConfig(**SMALL | fields).build(VOCAB).eval().double()


def translator(**fields) -> EncoderDecoderModel:
    return EncoderDecoderConfig(**SMALL | fields).build(VOCAB).eval().double()


@pytest.mark.parametrize("kind", ["eager", "fixed", "concatenated"])
@pytest.mark.parametrize("name", FIELDS)
@torch.inference_mode()
def test_a_decoder_reads_in_parts_what_it_reads_at_once(name: str, kind: str) -> None:
    model, tokens = decoder(**FIELDS[name]), torch.randint(VOCAB, (2, 9))
    whole = model(tokens, VALID)
    caches = Caches(kind, model.stack)
    for start, end in CUTS:
        state = DecoderState(cache=caches.before(start, end), valid=VALID[:, :end])
        logits, after = decoder_step(model, tokens[:, start:end], state, EVERY)
        real = VALID[:, start:end]
        torch.testing.assert_close(logits[real], whole[:, start:end][real])
        assert after.valid is not None
        assert after.valid.shape == (2, end + 1)
        assert after.valid[:, -1].all()


@torch.inference_mode()
def test_the_last_logits_are_those_of_the_next_token() -> None:
    model, tokens = decoder(), torch.randint(VOCAB, (2, 9))
    logits, after = decoder_step(model, tokens, DecoderState(cache=None, valid=VALID))
    torch.testing.assert_close(logits, model(tokens, VALID)[:, -1:])
    kept = after.select(torch.tensor([1, 1, 0]))
    assert kept.valid is not None
    assert torch.equal(kept.valid[:, :9], VALID[[1, 1, 0]])
    unpadded = DecoderState(cache=model.new_cache())
    assert unpadded.extended() is unpadded.select(torch.tensor([0])) is unpadded


@pytest.mark.parametrize("kind", ["eager", "fixed", "concatenated"])
@pytest.mark.parametrize("name", FIELDS)
@torch.inference_mode()
def test_a_translator_writes_in_parts_what_it_writes_at_once(name: str, kind: str) -> None:
    model, target = translator(**FIELDS[name]), torch.randint(VOCAB, (2, 9))
    source = torch.randint(VOCAB, (2, 9))
    whole = model(source, target, VALID)
    begun = TranslationState.start(model, source, VALID)
    assert begun.cache is not None
    assert begun.memory.shape == (2, 9, 0)
    memories = [layer.cross_cache.kept for layer in begun.cache]
    flat = [part for kept in memories for part in kept]
    caches = Caches(kind, model.decoder)
    for start, end in CUTS:
        state = TranslationState.after(pairs(flat), VALID, caches.before(start, end))
        logits, _ = translation_step(model, target[:, start:end], state)
        torch.testing.assert_close(logits, whole[:, start:end])


@torch.inference_mode()
def test_rows_share_the_memories_that_stay() -> None:
    """Two targets a source; then of the second source alone, in another order."""
    model, source = translator(**FIELDS["learned"]), torch.randint(VOCAB, (2, 9))
    target = torch.randint(VOCAB, (2, 2))
    whole = model(source[[1, 1]], target, VALID[[1, 1]])
    for cached in (True, False):
        state = TranslationState.start(model, source, VALID, cached=cached)
        rows, memories = torch.tensor([0, 0, 1, 1]), torch.arange(2)
        first = target[[0, 1, 0, 1], :1]
        logits, state = translation_step(model, first, state.select(rows, memories))
        torch.testing.assert_close(logits[2:], whole[:, :1])
        state = state.select(torch.tensor([3, 2]), torch.tensor([1]))
        new = target[[1, 0], 1:] if cached else target[[1, 0]]
        logits, _ = translation_step(model, new, state)
        torch.testing.assert_close(logits[:, -1], whole[[1, 0], 1])


@pytest.mark.parametrize("name", ["learned", "alibi"])
@torch.inference_mode()
def test_branches_of_a_row_are_rows_of_their_own(name: str) -> None:
    """Slots: one shared token, then two branches of it, then one more of each, crossed."""
    model, source = translator(**FIELDS[name]), torch.randint(VOCAB, (2, 5))
    tokens = torch.randint(VOCAB, (2, 5))
    seen = torch.tensor([[1, 0, 1, 1, 0], [1, 1, 0, 0, 1]]).bool().expand(2, -1, -1)
    positions = torch.tensor([[0, 1, 1, 2, 2]] * 2)
    state = TranslationState.start(model, source, None)
    _, state = translation_step(model, tokens[:, :1], state)
    for n in (3, 5):
        itself = torch.eye(2).bool().expand(2, -1, -1)
        sees = torch.cat([torch.ones(2, 2, 1).bool(), itself], 2) if n == 3 else seen
        state = replace(state, branches=Branches(sees, positions[:, :n]))
        logits, state = translation_step(model, tokens[:, n - 2 : n], state)
    for branch, path in enumerate(([0, 2, 3], [0, 1, 4])):
        alone = model(source, tokens[:, path])[:, -1]
        torch.testing.assert_close(logits[:, branch], alone)


class _Step(nn.Module):
    def __init__(self, model: DecoderModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, valid: Tensor, past: list[Tensor]) -> Tensor:
        cache = concatenated_cache(self.model.stack, past)
        return decoder_step(self.model, tokens, DecoderState(cache=cache, valid=valid), EVERY)[0]


@pytest.mark.long
@pytest.mark.usefixtures("types_unchecked")
@pytest.mark.parametrize("name", ["learned", "rotary, window"])
def test_a_traced_step_serves_every_length(name: str) -> None:
    """None of the lengths of the example, nor one text nor none of the past, is in the graph."""
    model = decoder(**FIELDS[name]).requires_grad_(False)
    any_length = torch.export.Dim.DYNAMIC

    def inputs(rows: int, past: int, new: int) -> tuple[Tensor, Tensor, list[Tensor]]:
        valid = torch.arange(past + new) >= torch.arange(rows)[:, None] % (past + new)
        tokens = torch.randint(VOCAB, (rows, new))
        return tokens, valid, [torch.randn(rows, 2, past, 4).double() for _ in range(4)]

    axes = {0: any_length, 1: any_length}
    exported = torch.export.export(
        _Step(model),
        inputs(2, 4, 3),
        dynamic_shapes=(axes, axes, [{0: any_length, 2: any_length}] * 4),
        strict=False,
    ).module(check_guards=False)
    for sizes in ((3, 9, 1), (1, 0, 4), (2, 1, 1), (4, 5, 5)):
        given = inputs(*sizes)
        torch.testing.assert_close(exported(*given), _Step(model)(*given))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (decoder(attention=RecurrentConfig()), "layer 0 .*has a Recurrent: use attention"),
        (decoder(attention=ConvolutionConfig()), "layer 0 .*has a Convolution: use attention"),
        (translator(input=LogMelEmbeddingConfig(n_mels=8)), "log-mel frames"),
        (translator(input=SeriesEmbeddingConfig()), "time series"),
    ],
)
def test_what_cannot_be_traced_is_named(model: nn.Module, says: str) -> None:
    with pytest.raises(InputError, match=f"this one cannot: .*{says}"):
        check_traceable("this one cannot", model)


def test_parts_that_are_not_traced_may_be_anything() -> None:
    model = translator(input=LogMelEmbeddingConfig(n_mels=8), **FIELDS["learned"])
    check_traceable("this one cannot", model.target_embed, model.decoder, model.head)


class Windowed(SelfAttention):
    """Attention of someone's own, of whose cache nothing is known."""


def test_hooks_and_attention_of_another_type_are_refused_by_name() -> None:
    config = DecoderConfig(d_model=16, n_layers=2, attention=AttentionConfig(n_heads=2))
    model = config.build(7)
    check_traceable("this model does not compile", model)
    hook = model.stack.blocks[1].register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match=r"a graph cannot hold .*forward hooks \(1\) of layer 1"):
        check_traceable("this model does not compile", model)
    hook.remove()
    model.stack.blocks[0].attention.__class__ = Windowed
    with pytest.raises(InputError, match=r"a graph cannot hold attention \(Windowed\) of layer 0"):
        check_traceable("this model does not compile", model)
