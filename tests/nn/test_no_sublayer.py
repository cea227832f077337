"""Layers of one sublayer: their equation, what is built of them, and what uses the model."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from addnorm.errors import InputError
from addnorm.generate import GreedyConfig, generate
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.models.step import check_traceable
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.init import initialise
from addnorm.nn.no_sublayer import NoFeedForwardConfig, NoMixerConfig
from addnorm.nn.positions import RotaryConfig
from addnorm.nn.residuals import (
    ParallelConfig,
    PostNormConfig,
    PreNormConfig,
    SandwichNormConfig,
)

NO_MIXER = LayerConfig(attention=NoMixerConfig())
NO_FEEDFORWARD = LayerConfig(feedforward=NoFeedForwardConfig())
MODEL = DecoderConfig(
    d_model=16,
    n_layers=2,
    dropout=0.0,
    position=RotaryConfig(),
    attention=AttentionConfig(n_heads=2),
    residual=PreNormConfig(),
    layer_pattern=(NO_MIXER, NO_FEEDFORWARD),
)
"""A feed-forward, then attention."""


@pytest.mark.parametrize("residual", [PreNormConfig(), PostNormConfig(), SandwichNormConfig()])
def test_two_layers_of_one_sublayer_are_one_layer_in_the_other_order(residual: Any) -> None:
    """Attention alone, then a feed-forward alone: the sums and norms of a layer with both."""
    both = replace(MODEL, n_layers=1, residual=residual, layer_pattern=()).build(9)
    apart = replace(MODEL, residual=residual, layer_pattern=(NO_FEEDFORWARD, NO_MIXER)).build(9)
    weights = {
        name.replace("blocks.0.feedforward", "blocks.1.feedforward"): weight
        for name, weight in both.state_dict().items()
    }
    assert weights.keys() == apart.state_dict().keys()
    apart.load_state_dict(weights)
    tokens = torch.arange(10).reshape(2, 5) % 9
    assert_close(apart(tokens), both(tokens), rtol=0, atol=0)


def test_absent_sublayers_count_in_no_scale_of_weights() -> None:
    """GPT-2's scale, `1/√n` of what writes to the residual stream, is that of two sublayers."""
    torch.manual_seed(0)
    model = replace(MODEL, d_model=128).build(9)
    initialise(model, "gpt2")
    spread = model.stack.blocks[0].feedforward.down_proj.weight.std().item()
    assert spread == pytest.approx(0.02 / 2**0.5, rel=0.05)


def test_the_factor_of_a_layer_is_at_its_only_sublayer() -> None:
    model = replace(MODEL, residual=SandwichNormConfig(layer_factor=True)).build(9)
    names = [name for name, _ in model.named_parameters() if name.endswith("layer_factor")]
    assert names == [
        "stack.blocks.0.feedforward_residual.layer_factor",
        "stack.blocks.1.attention_residual.layer_factor",
    ]
    assert all(model.get_parameter(name).tolist() == [1.0] for name in names)


def test_the_first_norm_left_out_is_that_of_the_only_sublayer() -> None:
    model = replace(MODEL, residual=PreNormConfig(first=False)).build(9)
    norms = {name for name, _ in model.named_parameters() if name.endswith("norm.weight")}
    assert norms == {"stack.blocks.1.attention_residual.norm.weight", "stack.norm.weight"}


def test_texts_are_written_without_attention() -> None:
    """Every layer a feed-forward: the next token depends on the last one alone."""
    torch.manual_seed(0)
    model = replace(MODEL, layer_pattern=(NO_MIXER,)).build(9).eval()
    [first], [second] = generate(
        model, [(1, 2, 3), (4, 3)], GreedyConfig(), max_new_tokens=4, eos_id=None
    )
    assert first.ids == second.ids


def test_a_graph_of_it_is_refused() -> None:
    with pytest.raises(InputError, match="layer 0 has no attention, as every layer must"):
        check_traceable("compiling", MODEL.build(9))


REFUSED: dict[str, tuple[type, dict[str, Any], str]] = {
    "nothing": (
        DecoderConfig,
        {"layer_pattern": (LayerConfig(), replace(NO_MIXER, feedforward=NoFeedForwardConfig()))},
        "layer 1: .* leave nothing in this layer",
    ),
    "in parallel": (DecoderConfig, {"residual": ParallelConfig()}, "kind, such as 'pre'"),
    "positions": (
        EncoderDecoderConfig,
        {"layer_pattern": (replace(NO_MIXER, position=RotaryConfig()),)},
        "position acts in attention, and the mixer of this layer is 'none'",
    ),
}


@pytest.mark.parametrize(("kind", "changes", "match"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused(kind: type, changes: dict[str, Any], match: str) -> None:
    usual = {"d_model": 16, "residual": PreNormConfig(), "layer_pattern": (NO_FEEDFORWARD,)}
    with pytest.raises(ValueError, match=match):
        kind(**usual | changes)
