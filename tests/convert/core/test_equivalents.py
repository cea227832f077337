"""Equivalent models compute the same function with different parts."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from addnorm.convert.core.equivalents import transform_tensors, with_biases, with_split_sinusoids
from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.norms import LayerNormConfig
from addnorm.nn.positions import LearnedConfig, SinusoidalConfig


def config(d_model: int, *, bias: bool = True) -> EncoderDecoderConfig:
    return EncoderDecoderConfig(
        d_model=d_model,
        n_layers=1,
        n_decoder_layers=2,
        attention=AttentionConfig(n_heads=3, bias=bias, out_bias=True),
        cross_attention=AttentionConfig(n_heads=1, d_head=4, bias=bias),
        feedforward=FeedForwardConfig(d_ff=d_model, bias=bias),
        norm=LayerNormConfig(bias=bias),
        dropout=0.0,
    )


@pytest.mark.parametrize("d_model", [6, 9])
@pytest.mark.parametrize("bias", [True, False])
def test_the_same_logits(d_model: int, bias: bool) -> None:
    torch.manual_seed(0)
    old = config(d_model, bias=bias)
    new = with_split_sinusoids(with_biases(old))
    assert isinstance(new, EncoderDecoderConfig)
    assert new.position == SinusoidalConfig(layout="halves")
    one, other = old.build(11).double(), new.build(11).double()
    with torch.no_grad():
        for weight in one.parameters():
            weight.add_(torch.randn_like(weight))
    shapes = {name: weight.shape for name, weight in other.named_parameters()}
    tensors = transform_tensors(dict(one.named_parameters()), old, new, shapes)
    other.load_state_dict(tensors, strict=False)
    tokens = torch.randint(11, (2, 5))
    assert_close(other(tokens, tokens), one(tokens, tokens), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "model",
    [
        with_split_sinusoids(with_biases(config(6))),
        replace(config(6), position=LearnedConfig()),
        replace(config(6), decoder_position=LearnedConfig()),
    ],
)
def test_equivalents_leave_other_models_unchanged(model: ModelConfig) -> None:
    assert with_split_sinusoids(with_biases(model)) == replace(
        model,
        attention=replace(model.attention, out_bias=None),  # type: ignore[arg-type]
    )
