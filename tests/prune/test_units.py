"""Every head and feed-forward row of a model is found once."""

import pytest
from tests.prune.test_pruned_model import CONFIGS, built

from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.no_sublayer import NoFeedForwardConfig, NoMixerConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.prune.units import feedforward_rows, head_groups, stacks_of


def test_a_group_is_a_key_value_head_with_its_queries() -> None:
    model = built(CONFIGS["grouped"])
    groups = head_groups(model)
    assert [(units.path, units.n, units.width) for units in groups] == [
        (f"stack.blocks.{i}.attention", 4, 12) for i in range(3)
    ]


def test_cross_attention_and_both_stacks_are_counted() -> None:
    model = built(CONFIGS["translator_apart"])
    assert [units.path for units in head_groups(model)] == [
        *(f"encoder.blocks.{i}.attention" for i in range(3)),
        *(
            f"decoder.blocks.{i}.{kind}"
            for i in range(2)
            for kind in ("attention", "cross_attention")
        ),
    ]
    assert [units.n for units in head_groups(model)] == [4, 4, 4, 2, 2, 2, 2]
    assert len(feedforward_rows(model)) == 5
    assert list(stacks_of(model)) == ["encoder", "decoder"]


def test_a_layer_without_a_sublayer_has_no_units_of_it() -> None:
    mixer_alone = LayerConfig(feedforward=NoFeedForwardConfig())
    feedforward_alone = LayerConfig(attention=NoMixerConfig())
    pattern = (mixer_alone, feedforward_alone, LayerConfig())
    model = built(DecoderConfig(d_model=16, n_layers=3, layer_pattern=pattern))
    assert [units.path for units in head_groups(model)] == [
        f"stack.blocks.{i}.attention" for i in (0, 2)
    ]
    assert [units.path for units in feedforward_rows(model)] == [
        f"stack.blocks.{i}.feedforward" for i in (1, 2)
    ]


def test_a_model_without_any_units_is_refused_with_its_first_layer() -> None:
    mixers = built(DecoderConfig(d_model=16, n_layers=2, feedforward=NoFeedForwardConfig()))
    with pytest.raises(InputError, match=r"stack\.blocks\.0\.feedforward is NoFeedForward"):
        feedforward_rows(mixers)
    recurrent = built(DecoderConfig(d_model=16, n_layers=2, attention=RecurrentConfig()))
    with pytest.raises(InputError, match=r"stack\.blocks\.0\.attention is Recurrent"):
        head_groups(recurrent)
