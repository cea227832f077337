"""A stage skips the numbers that other layers draw: the generator is where one process has it."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.training.parallel.test_stages import model_of, tokens
from torch import nn

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.core import EagerCoreConfig
from addnorm.nn.dropout import Dropout
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.training.parallel.draws import AT_ONCE, Draws, Numbers
from addnorm.training.parallel.stages import Stages

PARTS: dict[str, Any] = {
    "d_model": 8,
    "dropout": 0.2,
    "attention": AttentionConfig(n_heads=2, dropout=0.1, core=EagerCoreConfig()),
    "feedforward": GatedFeedForwardConfig(d_ff=7, dropout=0.3),
    "embedding": EmbeddingConfig(word_dropout=0.1),
}


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 5), st.integers(1, 7), st.sampled_from([0.0, 0.4]), st.integers(0, 9))
def test_the_generator_is_where_the_model_leaves_it(
    rows: int, length: int, layer_drop: float, seed: int
) -> None:
    config = DecoderConfig(n_layers=3, layer_drop=layer_drop, **PARTS)
    model = config.build(13).train()
    draws = Draws(model, Stages.equal((3,), 3))
    inputs = {"tokens": tokens(rows, length)}
    torch.manual_seed(seed)
    begins = list[torch.Tensor]()
    drop = model.stack.layer_drop
    for module in [model.embed] + ([*model.stack.blocks[1:]] if drop is None else []):
        module.register_forward_pre_hook(lambda *_: begins.append(torch.get_rng_state()))
    model(**inputs)
    after = torch.get_rng_state()
    torch.manual_seed(seed)
    states = draws.states(inputs)
    assert torch.equal(torch.get_rng_state(), after)
    assert states.keys() == {0, 1, 2}
    for stage, state in enumerate(begins):
        assert torch.equal(states[stage], state)


def test_those_of_an_encoder_decoder_follow_its_order() -> None:
    model = EncoderDecoderConfig(n_layers=2, n_decoder_layers=1, **PARTS).build(13).train()
    draws = Draws(model, Stages.equal((2, 1), 3))
    inputs = {"source": tokens(2, 4), "target": tokens(2, 3)}
    begins = list[torch.Tensor]()
    for module in (model.source_embed, model.encoder.blocks[1], model.target_embed):
        assert isinstance(module, nn.Module)
        module.register_forward_pre_hook(lambda *_: begins.append(torch.get_rng_state()))
    torch.manual_seed(1)
    model(**inputs)
    after = torch.get_rng_state()
    torch.manual_seed(1)
    states = draws.states(inputs)
    assert torch.equal(torch.get_rng_state(), after)
    assert all(torch.equal(states[i], state) for i, state in enumerate(begins))


@pytest.mark.parametrize("n", [1, 7, AT_ONCE, 2 * AT_ONCE + 5])
def test_skipped_numbers_are_those_of_a_mask(n: int) -> None:
    torch.manual_seed(0)
    Dropout(0.3).train()(torch.ones(4 * n))
    after = torch.get_rng_state()
    torch.manual_seed(0)
    Numbers(n).draw()
    assert torch.equal(torch.get_rng_state(), after)


def test_without_dropout_nothing_is_drawn() -> None:
    model, _ = model_of("decoder")
    assert not Draws.needed(model)
    assert Draws.needed(DecoderConfig(n_layers=1, **PARTS).build(13))
    assert Draws.needed(DecoderConfig(n_layers=1, dropout=0.0, layer_drop=0.1).build(13))


def test_a_part_that_needs_values_is_refused() -> None:
    model = DecoderConfig(n_layers=2, **PARTS).build(13)

    class Own(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input * int(input.sum())

    model.stack.blocks[0].feedforward = Own(8, 8)
    with pytest.raises(InputError, match="a part of the model needs values") as error:
        Draws(model, Stages.equal((2,), 2)).states({"tokens": tokens(2, 3)})
    assert "\n" not in str(error.value)
