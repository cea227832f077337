"""Layers with parts of their own: what each is built of, and which combinations are refused."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from addnorm.config import ConfigError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig, DifferentialCoreConfig, SelfAttention
from addnorm.nn.attention.patterns import WindowPatternConfig
from addnorm.nn.blocks import Stack
from addnorm.nn.convolution import Convolution, ConvolutionConfig
from addnorm.nn.feedforward import FeedForward
from addnorm.nn.masks import Full, Window
from addnorm.nn.moe import MixtureOfExperts, MixtureOfExpertsConfig
from addnorm.nn.norms import LayerNorm, RMSNorm, RMSNormConfig
from addnorm.nn.positions import ALiBiConfig, Learned, LearnedConfig, RotaryConfig, T5BiasConfig
from addnorm.nn.recurrent import Recurrent, RecurrentConfig
from addnorm.nn.residuals import PreNormConfig

WIDE = AttentionConfig(n_heads=2, n_kv_heads=1, d_head=12, qk_norm=RMSNormConfig())
SIZES: dict[str, Any] = {"d_model": 16, "attention": AttentionConfig(n_heads=4), "dropout": 0.0}

HYBRID = (
    LayerConfig(attention=RecurrentConfig(cell="gru"), feedforward=MixtureOfExpertsConfig()),
    LayerConfig(pattern=WindowPatternConfig(size=3), norm=RMSNormConfig()),
    LayerConfig(attention=WIDE),
)


def heads(attention: nn.Module) -> tuple[int, int, int]:
    """The query heads, the key/value heads, and their width."""
    assert isinstance(attention, SelfAttention)
    d_head = attention.d_head
    widths = attention.q_proj.out_features, attention.k_proj.out_features
    return widths[0] // d_head, widths[1] // d_head, d_head


@pytest.mark.parametrize(
    "config",
    [
        DecoderConfig(n_layers=5, layer_pattern=HYBRID, **SIZES),
        EncoderConfig(n_layers=5, layer_pattern=HYBRID, **SIZES),
        EncoderDecoderConfig(n_layers=5, layer_pattern=HYBRID, **SIZES),
        EncoderDecoderConfig(n_layers=5, decoder_layer_pattern=HYBRID, **SIZES),
    ],
    ids=["decoder", "encoder", "both", "decoder alone"],
)
def test_each_layer_has_its_own_parts_or_the_models(config: Any) -> None:
    model = config.build(9)
    names = ["stack"] if config.kind != "encoder_decoder" else ["encoder", "decoder"]
    assert [*config.stacks] == names
    for name in names[-1:] if getattr(config, "decoder_layer_pattern", None) else names:
        stack = model.get_submodule(name)
        assert isinstance(stack, Stack)
        recurrent, window, wide, *again = stack.blocks
        assert isinstance(recurrent.attention, Recurrent)
        assert isinstance(recurrent.feedforward, MixtureOfExperts)
        assert heads(window.attention) == (4, 4, 4)
        assert heads(wide.attention) == (2, 1, 12)
        assert [mixer.pattern for mixer in stack.mixers][1:3] == [Window(3), Full()]
        assert isinstance(wide.feedforward, FeedForward)
        norms = [block.attention_residual.norm for block in stack.blocks]
        assert [type(norm) for norm in norms] == [LayerNorm, RMSNorm, LayerNorm, LayerNorm, RMSNorm]
        assert [type(block.attention) for block in again] == [Recurrent, SelfAttention]


def test_the_decoders_layers_are_like_the_encoders_by_default() -> None:
    config = EncoderDecoderConfig(n_layers=2, n_decoder_layers=3, layer_pattern=HYBRID, **SIZES)
    stacks = config.stacks
    assert stacks["decoder"][:2] == stacks["encoder"]
    assert stacks["decoder"][2].attention == WIDE
    own = replace(config, decoder_layer_pattern=(), decoder_attention=WIDE)
    assert [layer.attention for layer in own.stacks["decoder"]] == [WIDE] * 3
    assert own.stacks["encoder"] == stacks["encoder"]


def test_cross_attention_is_like_the_attention_of_its_layer() -> None:
    config = EncoderDecoderConfig(n_layers=3, decoder_layer_pattern=HYBRID, **SIZES)
    blocks = config.build(9).decoder.blocks
    crossing = [block.cross_attention.q_proj.out_features for block in blocks]
    assert crossing == [16, 16, 24]
    one = replace(config, cross_attention=WIDE)
    assert [layer.cross_attention for layer in one.stacks["decoder"]] == [WIDE] * 3


def test_layers_with_heads_of_one_size_share_their_positions() -> None:
    pattern = (LayerConfig(), LayerConfig(attention=WIDE), LayerConfig(attention=RecurrentConfig()))
    model = DecoderConfig(
        n_layers=6, position=T5BiasConfig(), layer_pattern=pattern, **SIZES
    ).build(9)
    first, wide, _, second, again, _ = model.stack.mixers
    assert isinstance(first, SelfAttention)
    assert isinstance(second, SelfAttention)
    assert isinstance(wide, SelfAttention)
    assert isinstance(again, SelfAttention)
    assert first.position is second.position is model.embed.position
    assert wide.position is again.position is not first.position
    tables = [part.position.table.weight.shape[1] for part in (first, wide)]  # pyright: ignore[reportAttributeAccessIssue]
    assert tables == [4, 2]


def test_the_models_positions_have_the_heads_of_the_first_attention() -> None:
    """Where the model's mixer has no heads, and none of its numbers stay unused."""
    config = DecoderConfig(
        d_model=16,
        n_layers=2,
        attention=RecurrentConfig(),
        position=T5BiasConfig(),
        layer_pattern=(LayerConfig(), LayerConfig(attention=WIDE)),
    )
    model = config.build(9)
    mixer = model.stack.mixers[1]
    assert isinstance(mixer, SelfAttention)
    assert mixer.position is model.embed.position
    model(torch.zeros(1, 4, dtype=torch.long)).sum().backward()
    assert not [name for name, one in model.named_parameters() if one.grad is None]


def test_positions_before_the_layers_are_those_of_all() -> None:
    pattern = (LayerConfig(attention=WIDE), LayerConfig(attention=ConvolutionConfig()))
    model = DecoderConfig(
        n_layers=2, position=LearnedConfig(), layer_pattern=pattern, **SIZES
    ).build(9)
    tables = {id(one) for one in model.modules() if isinstance(one, Learned)}
    assert len(tables) == 1
    assert isinstance(model.stack.mixers[1], Convolution)


def test_an_attention_that_no_layer_has_need_not_fit() -> None:
    config = DecoderConfig(d_model=12, n_layers=2, layer_pattern=(LayerConfig(attention=WIDE),))
    assert heads(config.build(5).stack.blocks[0].attention) == (2, 1, 12)


def test_pre_norm_without_the_very_first_keeps_the_norms_of_layers() -> None:
    pattern = (LayerConfig(norm=RMSNormConfig()),)
    config = EncoderConfig(
        n_layers=2, residual=PreNormConfig(first=False), layer_pattern=pattern, **SIZES
    )
    model = config.build(9)
    norms = {name for name, one in model.named_modules() if isinstance(one, RMSNorm)}
    assert len(norms) == 3
    assert isinstance(model.stack.norm, LayerNorm)


@pytest.mark.parametrize(
    ("layer", "changes", "message"),
    [
        (
            {"attention": RecurrentConfig(), "position": RotaryConfig()},
            {},
            "layer 1: position acts in attention, and the mixer of this layer is 'recurrent'",
        ),
        (
            {"pattern": WindowPatternConfig(size=2)},
            {"attention": ConvolutionConfig(), "position": ALiBiConfig()},
            "layer 1: pattern restricts attention, and the mixer of this layer is 'convolution'",
        ),
        ({"attention": AttentionConfig(n_heads=3)}, {}, "layer 1: d_model = 16 does not divide"),
        (
            {"attention": AttentionConfig(n_heads=2, d_head=3)},
            {"position": RotaryConfig()},
            "layer 1: .*must be even",
        ),
        (
            {"attention": AttentionConfig(n_heads=1, core=DifferentialCoreConfig())},
            {},
            "layer 1: differential attention pairs heads",
        ),
    ],
)
@pytest.mark.parametrize("kind", [DecoderConfig, EncoderConfig, EncoderDecoderConfig])
def test_a_layer_that_cannot_be_is_named(
    kind: Any, layer: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    given = {**SIZES, **changes, "n_layers": 2}
    pattern = (LayerConfig(), LayerConfig(**layer))
    with pytest.raises(ConfigError, match=rf"^{kind.__name__}: ({message})"):
        kind(layer_pattern=pattern, **given)
    if kind is EncoderDecoderConfig:
        with pytest.raises(ConfigError, match=rf"^{kind.__name__}: decoder: ({message})"):
            kind(decoder_layer_pattern=pattern, **given)


def test_a_pattern_has_one_place() -> None:
    with pytest.raises(ConfigError, match=r"^LayerConfig: pattern is a field of attention: give"):
        LayerConfig(attention=WIDE, pattern=WindowPatternConfig(size=2))


def test_parts_are_changed_wherever_they_are_given() -> None:
    config = EncoderDecoderConfig(
        n_layers=2, decoder_layer_pattern=HYBRID, cross_attention=WIDE, **SIZES
    )

    def with_two_heads(mixer: Any) -> Any:
        return replace(mixer, n_heads=2) if isinstance(mixer, AttentionConfig) else mixer

    found = config.with_parts("attention", with_two_heads)
    layers = [layer for stack in found.stacks.values() for layer in stack]
    mixers = [layer.attention for layer in layers] + [layer.cross_attention for layer in layers]
    assert {one.n_heads for one in mixers if isinstance(one, AttentionConfig)} == {2}
    assert found.with_parts("norm", lambda _: RMSNormConfig()).norm == RMSNormConfig()
