"""Learned positions with T5's bias: each acts where it does alone."""

import pytest
import torch
from tests.contracts import build_context, check_config

from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.context import Context
from addnorm.nn.masks import Full
from addnorm.nn.positions import LearnedT5Config, PositionConfig
from addnorm.nn.positions.t5 import T5Bias

SIZES = build_context(8, 2, max_len=16)


def test_both_act_as_they_do_alone() -> None:
    made = LearnedT5Config(buckets=6, max_distance=5).build(SIZES)
    x = torch.randn(2, 5, 8)
    ctx = Context.over(x, Full())
    assert torch.equal(made.embed(x, ctx), x + made.learned.table.weight[:5])
    layers = [made.in_layer(i) for i in range(3)]
    assert all(layer is made.bias for layer in layers)
    assert isinstance(layers[0], T5Bias)
    assert made.max_len == 16


def test_layers_share_the_table_of_biases() -> None:
    model = EncoderConfig(
        d_model=8, n_layers=3, position=LearnedT5Config(), attention=AttentionConfig(n_heads=2)
    ).build(11)
    names = [name for name, _ in model.named_parameters() if "position" in name]
    assert names == ["embed.position.learned.table.weight", "embed.position.bias.table.weight"]


def test_its_configuration() -> None:
    check_config(LearnedT5Config(buckets=6, max_distance=5), PositionConfig)
    with pytest.raises(ValueError, match="buckets = 5 must be even"):
        LearnedT5Config(buckets=5)
