"""Model configurations: sizes are given once, and invalid combinations are refused early."""

from typing import Any, get_args

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from tests.contracts import check_records

from addnorm.models import (
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    Model,
    ModelConfig,
)
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import (
    AdditiveConfig,
    AttentionConfig,
    BilinearConfig,
    WindowPatternConfig,
)
from addnorm.nn.attention.multihead import SelfAttention
from addnorm.nn.masks import Full, Window
from addnorm.nn.norms import LayerNorm, NoNorm
from addnorm.nn.positions import (
    ALiBiConfig,
    LearnedConfig,
    RotaryConfig,
    SinusoidalConfig,
    TransformerXLConfig,
)
from addnorm.nn.positions.position import NoPosition
from addnorm.nn.positions.rotary import Rotary
from addnorm.nn.positions.sinusoidal import frequencies
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.residuals import PreNormConfig

RECORDS = [
    EncoderConfig(),
    DecoderConfig(
        d_model=16, attention=AttentionConfig(n_heads=4, pattern=WindowPatternConfig(size=8))
    ),
    EncoderDecoderConfig(n_decoder_layers=2),
    DualEncoderConfig(n_layers=2, causal=True),
]


def test_every_model_has_a_record() -> None:
    check_records(ModelConfig, RECORDS)
    assert len(get_args(Model)) == len(RECORDS)


def test_from_plain_data() -> None:
    written = {
        "kind": "decoder",
        "d_model": 24,
        "attention": {"n_heads": 3},
        "norm": {"kind": "rmsnorm"},
    }
    config = TypeAdapter[ModelConfig](ModelConfig).validate_python(written)
    assert isinstance(config, DecoderConfig)
    assert config.attention.heads(config.d_model).d_head == 8


@pytest.mark.parametrize(
    ("written", "match"),
    [
        ({"kind": "decodr"}, "decodr"),
        ({"kind": "decoder", "norm": {"kind": "groupnorm"}}, "groupnorm"),
        ({"kind": "decoder", "norm": {"kind": "rmsnorm", "bias": True}}, "bias"),
        ({"kind": "decoder", "d_model": 10, "attention": {"n_heads": 4}}, "d_model = 10"),
        ({"kind": "decoder", "attention": {"n_heads": 8, "n_kv_heads": 3}}, "n_kv_heads = 3"),
        ({"kind": "decoder", "head": {"kind": "tagging"}}, "kind"),
    ],
)
def test_mistakes_in_plain_data_are_refused(written: dict[str, object], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        TypeAdapter[ModelConfig](ModelConfig).validate_python(written)


@pytest.mark.parametrize("n_layers", [1, 3])
def test_sizes_flow_down(n_layers: int) -> None:
    model = DecoderConfig(
        d_model=24, n_layers=n_layers, attention=AttentionConfig(n_heads=3)
    ).build(7)
    assert len(model.stack.blocks) == n_layers
    widths = {tuple(m.weight.shape) for m in model.modules() if isinstance(m, LayerNorm)}
    assert widths == {(24,)}
    assert model.stack.blocks[0].feedforward.up_proj.out_features == 96


def test_an_odd_head_width_cannot_turn() -> None:
    with pytest.raises(ValueError, match="d_head = 3 turns 3 features, which must be even"):
        DecoderConfig(d_model=6, attention=AttentionConfig(n_heads=2), position=RotaryConfig())


@pytest.mark.parametrize("position", [RotaryConfig(), TransformerXLConfig()])
@pytest.mark.parametrize("score", [BilinearConfig(), AdditiveConfig()])
def test_positions_of_dot_products_refuse_other_scores(
    position: RotaryConfig | TransformerXLConfig, score: BilinearConfig | AdditiveConfig
) -> None:
    with pytest.raises(ValueError, match=f"{position.kind} positions .* with {score.kind} scores"):
        DecoderConfig(position=position, attention=AttentionConfig(score=score))


def test_positions_belong_to_the_heads_of_self_attention() -> None:
    """A cross-attention with other heads changes nothing about the biases of self-attention."""
    config = EncoderDecoderConfig(
        d_model=16,
        n_layers=1,
        position=ALiBiConfig(),
        attention=AttentionConfig(n_heads=4),
        cross_attention=AttentionConfig(n_heads=2),
    )
    tokens = torch.zeros(1, 3, dtype=torch.long)
    assert config.build(5)(tokens, tokens).shape == (1, 3, 5)


def test_layers_take_what_the_cycle_says_in_turn() -> None:
    config = DecoderConfig(
        d_model=16,
        n_layers=5,
        attention=AttentionConfig(n_heads=2),
        position=RotaryConfig(theta=1e6),
        layer_pattern=(
            LayerConfig(pattern=WindowPatternConfig(size=3), position=RotaryConfig(theta=1e4)),
            LayerConfig(),
        ),
    )
    mixers = config.build(7).stack.mixers
    assert [mixer.pattern for mixer in mixers] == [Window(3), Full()] * 2 + [Window(3)]
    own, common = (frequencies(8, theta) for theta in (1e4, 1e6))
    for i, mixer in enumerate(mixers):
        assert isinstance(mixer, SelfAttention)
        assert isinstance(mixer.position, Rotary)
        torch.testing.assert_close(mixer.position.frequencies, common if i % 2 else own)


def test_a_window_in_some_layers_alone_decodes_as_without_a_cache() -> None:
    torch.manual_seed(0)
    layer_pattern = (LayerConfig(pattern=WindowPatternConfig(size=2)), LayerConfig(), LayerConfig())
    config = DecoderConfig(
        d_model=16,
        n_layers=3,
        attention=AttentionConfig(n_heads=2),
        layer_pattern=layer_pattern,
        dropout=0.0,
    )
    model = config.build(7).eval()
    tokens = torch.randint(7, (2, 6))
    cache = model.new_cache()
    pieces = [model(piece, cache=cache) for piece in tokens.split([2, 1, 3], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, 1), model(tokens), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        (
            {"attention": RecurrentConfig()},
            "layer 0: position acts in attention, and the mixer of this layer is 'recurrent'",
        ),
        ({"attention": AttentionConfig(n_heads=2, d_head=3)}, "must be even"),
        (
            {"attention": AttentionConfig(n_heads=2, score=AdditiveConfig())},
            "rotary positions are defined for dot products",
        ),
    ],
)
def test_an_impossible_layer_pattern_is_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        DecoderConfig(d_model=16, layer_pattern=(LayerConfig(position=RotaryConfig()),), **changes)


def test_the_very_first_norm_may_be_left_out() -> None:
    config = EncoderConfig(d_model=16, n_layers=2, residual=PreNormConfig(first=False))
    blocks = config.build(7).stack.blocks
    assert isinstance(blocks[0].attention_residual.norm, NoNorm)
    for part in (blocks[0].feedforward_residual, blocks[1].attention_residual):
        assert isinstance(part.norm, LayerNorm)


def test_a_decoder_may_have_positions_of_its_own() -> None:
    config = EncoderDecoderConfig(
        d_model=16,
        n_layers=1,
        position=SinusoidalConfig(),
        decoder_position=LearnedConfig(),
        decoder_max_len=9,
    )
    model = config.build(7)
    assert model.source_embed.position.max_len is None
    assert model.target_embed.position.max_len == 9


def test_outputs_may_have_a_bias_of_their_own() -> None:
    attention = AttentionConfig(n_heads=2, bias=True, out_bias=False)
    built = attention.build(8, NoPosition(), True)
    assert built.q_proj.bias is not None
    assert built.out_proj.bias is None
    assert attention.build_cross(8).out_proj.bias is None
