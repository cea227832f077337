"""The encoder–decoder: shared tables, one encoding of the source, padding on both sides."""

import dataclasses
import math
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts import check_config, check_gradients, check_module
from torch import Tensor
from torch.testing import assert_close

from addnorm.models import EncoderDecoderConfig, EncoderDecoderModel, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import RMSNormConfig
from addnorm.nn.positions import LearnedConfig, RotaryConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import PreNormConfig

pytestmark = pytest.mark.usefixtures("types_unchecked")

VOCAB = 13
SMALL = EncoderDecoderConfig(
    d_model=16,
    n_layers=2,
    max_len=32,
    attention=AttentionConfig(n_heads=2),
    dropout=0.0,
    head=TokenHeadConfig(tied=False),
)
FAMILIES = {
    "original": SMALL,
    "learned": dataclasses.replace(SMALL, position=LearnedConfig(), residual=PreNormConfig()),
    "modern": dataclasses.replace(
        SMALL,
        position=RotaryConfig(),
        attention=AttentionConfig(n_heads=4, n_kv_heads=2),
        norm=RMSNormConfig(),
        residual=PreNormConfig(),
        n_decoder_layers=1,
    ),
}
UNEQUAL = dataclasses.replace(
    SMALL,
    position=RotaryConfig(),
    decoder_attention=AttentionConfig(n_heads=4, n_kv_heads=1, d_head=6),
    decoder_feedforward=FeedForwardConfig(d_ff=20),
)
every_family = pytest.mark.parametrize("name", FAMILIES)


@cache
def shared(name: str) -> EncoderDecoderModel:
    """A model that its test does not change."""
    return build(name)


def build(name: str, **changes: object) -> EncoderDecoderModel:
    torch.manual_seed(7)
    return dataclasses.replace(FAMILIES[name], **changes).build(VOCAB).eval()  # type: ignore[arg-type]


def batch(lengths: list[int], side: str) -> tuple[Tensor, Tensor]:
    slots, sizes = torch.arange(max(lengths)), torch.tensor(lengths)[:, None]
    valid = slots >= max(lengths) - sizes if side == "left" else slots < sizes
    return torch.randint(1, VOCAB, valid.shape) * valid, valid


def chunks(
    model: EncoderDecoderModel, pair: tuple[Tensor, Tensor, Tensor, Tensor], cuts: list[int]
) -> Tensor:
    source, target, source_valid, target_valid = pair
    memory, cache, out = model.encode(source, source_valid), model.new_cache(), []
    for start, end in zip([0, *cuts], [*cuts, target.shape[1]], strict=True):
        new, seen = target[:, start:end], target_valid[:, :end]
        out.append(model.decode(new, memory, source_valid, seen, cache))
    return torch.cat(out, dim=1)


@every_family
def test_contract(name: str) -> None:
    check_config(FAMILIES[name], ModelConfig)
    (source, source_valid), (target, target_valid) = batch([4, 2], "right"), batch([3, 5], "right")
    check_module(
        lambda: build(name), lambda model, _: model(source, target, source_valid, target_valid)
    )


@every_family
def test_gradients(name: str) -> None:
    model = build(name, d_model=8, n_layers=1)
    (source, source_valid), (target, target_valid) = batch([2, 1], "left"), batch([1, 2], "right")
    check_gradients(
        model,
        lambda m, x: m(source, target, source_valid, target_valid) * x,
        torch.ones(1),
        twice=False,
    )


lengths = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8)), min_size=1, max_size=4)
sides = st.sampled_from(["left", "right"])


@settings(max_examples=12)
@every_family
@given(lengths=lengths, source_side=sides, target_side=sides, data=st.data())
def test_alone_together_padded_and_cached(
    name: str,
    lengths: list[tuple[int, int]],
    source_side: str,
    target_side: str,
    data: st.DataObject,
) -> None:
    """One result, however the pair is batched, padded and cut into cached chunks."""
    model = shared(name)
    source, source_valid = batch([s for s, _ in lengths], source_side)
    target, target_valid = batch([t for _, t in lengths], target_side)
    with torch.no_grad():
        together = model(source, target, source_valid, target_valid)
        for i in range(len(lengths)):
            alone = model(source[i : i + 1, source_valid[i]], target[i : i + 1, target_valid[i]])
            assert_close(together[i, target_valid[i]], alone[0], rtol=0, atol=1e-5)
        width = target.shape[1]
        cuts = sorted(data.draw(st.sets(st.integers(1, width - 1)))) if width > 1 else []
        cached = chunks(model, (source, target, source_valid, target_valid), cuts)
        assert_close(cached[target_valid], together[target_valid], rtol=0, atol=1e-5)


@every_family
def test_the_future_of_the_target_changes_nothing(name: str) -> None:
    model, t = build(name), torch.arange(210) % 7 + 1
    source, target = torch.randint(1, VOCAB, (210, 5)), torch.randint(1, VOCAB, (210, 8))
    before = torch.arange(8) < t[:, None]
    other = torch.where(
        before, target, (target + 1 + torch.randint(VOCAB - 1, target.shape)) % VOCAB
    )
    with torch.no_grad():
        seen, unseen = model(source, target), model(source, other)
    assert torch.equal(seen[before], unseen[before])
    assert not torch.isclose(seen[~before], unseen[~before]).all(-1).any()


def test_every_source_token_is_seen() -> None:
    model, source, target = build("original"), torch.arange(1, 6)[None], torch.tensor([[1]])
    for i in range(5):
        other = source.clone()
        other[0, i] = 9
        assert not torch.allclose(model(other, target), model(source, target), atol=1e-5)


@every_family
@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("side", ["left", "right"])
def test_values_at_padding_change_no_bit(name: str, garbage: float, side: str) -> None:
    model = build(name)
    (source, source_valid), (target, target_valid) = batch([5, 2], side), batch([3, 6], side)
    clean = model(source, target, source_valid, target_valid)
    with torch.no_grad():
        model.source_embed.tokens.weight[0] = garbage
        model.target_embed.tokens.weight[0] = garbage
    dirty = model(source, target, source_valid, target_valid)
    assert torch.equal(dirty[target_valid], clean[target_valid])


@every_family
def test_an_empty_source_is_finite(name: str) -> None:
    """A row without a single source token: cross-attention adds its bias alone."""
    model, (source, valid) = build(name), batch([4, 3], "right")
    valid = valid & torch.tensor([[True], [False]])
    out = model(source, torch.ones(2, 3, dtype=torch.long), valid)
    assert out.isfinite().all()
    out.sum().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@every_family
def test_selected_rows_of_a_cache_continue_their_texts(name: str) -> None:
    """As beam search does: rows repeated, dropped and reordered, memory and all."""
    model, rows = build(name), torch.tensor([1, 1, 0, 2])
    (source, valid), target = batch([4, 2, 3], "right"), torch.randint(1, VOCAB, (3, 4))
    with torch.no_grad():
        memory, cache = model.encode(source, valid), model.new_cache()
        model.decode(target[:, :3], memory, valid, cache=cache)
        cache.select(rows)
        got = model.decode(target[rows, 3:], memory[rows], valid[rows], cache=cache)
        assert_close(got, model(source, target, valid)[rows, 3:], rtol=0, atol=1e-5)


def test_one_table_for_all() -> None:
    tied = dataclasses.replace(SMALL, head=TokenHeadConfig()).build(VOCAB)
    assert tied.source_embed.tokens.weight is tied.target_embed.tokens.weight is tied.head.weight


def test_two_vocabularies() -> None:
    config = dataclasses.replace(SMALL, share_embeddings=False, head=TokenHeadConfig())
    model = config.build(VOCAB, 7)
    assert model.source_embed.tokens.num_embeddings == VOCAB
    assert model.target_embed.tokens.weight is model.head.weight
    assert model(torch.full((1, 2), 12), torch.full((1, 3), 6)).shape == (1, 3, 7)
    with pytest.raises(ValueError, match=r"13 .* 7"):
        SMALL.build(VOCAB, 7)


@pytest.mark.parametrize("mixer", [RecurrentConfig(), ConvolutionConfig()], ids=lambda m: m.kind)
def test_heads_that_nobody_wrote_divide_the_width(
    mixer: RecurrentConfig | ConvolutionConfig,
) -> None:
    """Eight, or the most below that do."""
    tokens = torch.randint(7, (2, 3))
    for d_model, n_heads in ((16, 8), (12, 6), (13, 1)):
        config = EncoderDecoderConfig(d_model=d_model, n_layers=1, attention=mixer)
        if not (isinstance(mixer, RecurrentConfig) and d_model % 2):
            assert config.build(7)(tokens, tokens).shape == (2, 3, 7)
        assert config.cross_attention_config.heads(d_model).n_heads == n_heads


def test_heads_of_cross_attention_are_checked_with_the_width() -> None:
    with pytest.raises(ValueError, match=r"d_model = 12 .* n_heads = 5"):
        EncoderDecoderConfig(
            d_model=12,
            attention=AttentionConfig(n_heads=4),
            cross_attention=AttentionConfig(n_heads=5),
        )


def test_depths() -> None:
    model = build("modern")
    assert (len(model.encoder.blocks), len(model.decoder.blocks)) == (2, 1)
    assert len(model.new_cache().layers) == 1


def test_the_decoder_has_sizes_of_its_own() -> None:
    """Its cross-attention is as its self-attention, unless it has a configuration too."""
    model = UNEQUAL.build(VOCAB)
    encoder, decoder = model.encoder.blocks[0], model.decoder.blocks[0]
    shapes = {name: tuple(w.shape) for name, w in decoder.named_parameters() if "proj.w" in name}
    assert shapes["attention.k_proj.weight"] == shapes["cross_attention.k_proj.weight"] == (6, 16)
    assert shapes["attention.q_proj.weight"] == shapes["cross_attention.q_proj.weight"] == (24, 16)
    assert shapes["feedforward.up_proj.weight"] == (20, 16)
    assert dict(encoder.named_parameters())["feedforward.up_proj.weight"].shape == (64, 16)
    own = dataclasses.replace(UNEQUAL, cross_attention=AttentionConfig(n_heads=2))
    assert own.decoder_parts.cross_attention_config == AttentionConfig(n_heads=2)


def test_the_decoders_attention_and_positions_must_fit_too() -> None:
    with pytest.raises(ValueError, match="rotary positions turn pairs"):
        dataclasses.replace(UNEQUAL, decoder_attention=AttentionConfig(d_head=5))
    with pytest.raises(ValueError, match="n_heads = 3"):
        dataclasses.replace(SMALL, decoder_attention=AttentionConfig(n_heads=3))
