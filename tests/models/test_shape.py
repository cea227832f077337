"""The shape of every model: sizes flow down from one place, and what cannot be is refused early."""

from typing import get_args

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from tests.contracts import check_records

from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, Model, ModelConfig
from addnorm.nn.attention import (
    AdditiveConfig,
    AttentionConfig,
    BilinearConfig,
    WindowPatternConfig,
)
from addnorm.nn.norms import LayerNorm
from addnorm.nn.positions import ALiBiConfig, RotaryConfig, TransformerXLConfig

RECORDS = [
    EncoderConfig(),
    DecoderConfig(
        d_model=16, attention=AttentionConfig(n_heads=4, pattern=WindowPatternConfig(size=8))
    ),
    EncoderDecoderConfig(n_decoder_layers=2),
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
