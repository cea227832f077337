"""Changing parts of a recipe's model by name."""

from pathlib import Path
from typing import Any

import pytest
from tests.runs.tiny import write_recipe

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderDecoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.norms import LayerNormConfig, RMSNormConfig
from addnorm.nn.positions import NoPositionConfig, RotaryConfig
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.runs.recipes.overrides import changed, with_depth
from addnorm.runs.recipes.recipe import Recipe, read_recipe


def recipe_of(task: str, folder: Path, **overrides: str) -> Recipe:
    return read_recipe(write_recipe(folder, task), overrides)


def model_with(folder: Path, *sets: str, task: str = "language", **overrides: str) -> Any:
    return changed(recipe_of(task, folder, **overrides), sets).model


def test_a_word_is_a_kind(tmp_path: Path) -> None:
    model = model_with(tmp_path, "norm=rmsnorm", "position = rotary", "model.n_layers=3")
    assert model.norm == RMSNormConfig(eps=1e-5), "its ε is kept"
    assert model.position == RotaryConfig()
    assert model.n_layers == 3


def test_a_table_changes_what_it_names(tmp_path: Path) -> None:
    model = model_with(tmp_path, "norm={eps = 1e-3}", "attention={n_kv_heads = 1}")
    assert model.norm == LayerNormConfig(eps=1e-3)
    assert model.attention == AttentionConfig(n_heads=2, n_kv_heads=1)
    model = model_with(tmp_path, 'norm={kind = "rmsnorm", eps = 1e-3}', "attention.n_heads=4")
    assert model.norm == RMSNormConfig(eps=1e-3)
    assert model.attention == AttentionConfig(n_heads=4)


WINDOWS = '[{pattern = {kind = "window", size = 3}}, {}]'


def own_parts(model: Any, name: str = "layer_pattern") -> list[dict[str, Any]]:
    """The parts that each entry of a layer pattern gives its layers."""
    return [
        {field: part for field, part in vars(layer).items() if part is not None}
        for layer in getattr(model, name)
    ]


def test_a_path_changes_the_part_of_one_layer(tmp_path: Path) -> None:
    """A layer without a part of its own begins with the model's."""
    three = {"model.n_layers": "3"}
    model = model_with(tmp_path, "layer_pattern.1.norm=rmsnorm", **three)
    assert own_parts(model) == [{}, {"norm": RMSNormConfig(eps=1e-5)}, {}]
    model = model_with(tmp_path, "layer_pattern.2.attention.n_kv_heads=1", **three)
    assert own_parts(model)[2] == {"attention": AttentionConfig(n_heads=2, n_kv_heads=1)}
    model = model_with(tmp_path, "layer_pattern.0.attention=recurrent", **three)
    assert own_parts(model) == [{"attention": RecurrentConfig()}, {}, {}]


def test_a_path_changes_no_other_layer_of_a_repeated_pattern(tmp_path: Path) -> None:
    given = {"model.n_layers": "3", "model.layer_pattern": WINDOWS}
    model = model_with(tmp_path, "layer_pattern.2.feedforward.d_ff=24", **given)
    window, whole, changed_layer = own_parts(model)
    assert whole == {}
    assert changed_layer["pattern"] == window["pattern"]
    assert changed_layer["feedforward"].d_ff == 24
    model = model_with(tmp_path, "layer_pattern.0.attention.n_kv_heads=1", **given)
    first, *others = own_parts(model)
    assert first["attention"].pattern == window["pattern"]
    assert first["attention"].n_kv_heads == 1
    assert others == [{}, window]


def test_a_path_changes_a_layer_of_the_decoder_alone(tmp_path: Path) -> None:
    path = "decoder_layer_pattern.1.norm=rmsnorm"
    model = model_with(tmp_path, path, task="translation", **{"model.n_layers": "2"})
    assert own_parts(model, "decoder_layer_pattern") == [{}, {"norm": RMSNormConfig(eps=1e-5)}]
    assert model.layer_pattern == ()


def test_the_same_kind_changes_nothing(tmp_path: Path) -> None:
    before = recipe_of("language", tmp_path)
    assert changed(before, ["norm=layernorm", "feedforward=mlp", "attention=attention"]) == before


def test_a_feed_forward_layer_keeps_its_width(tmp_path: Path) -> None:
    given = {"model.feedforward": '{kind = "mlp", d_ff = 24, dropout = 0.5}'}
    model = model_with(tmp_path, "feedforward=gated", **given)
    assert model.feedforward == GatedFeedForwardConfig(d_ff=24, dropout=0.5)
    model = model_with(tmp_path, "feedforward=gated", **{"model.feedforward": '{kind = "mlp"}'})
    assert model.feedforward == GatedFeedForwardConfig(d_ff=64), "the default, written out"
    model = model_with(tmp_path, "feedforward=moe", "feedforward.n_experts=4", **given)
    expert = FeedForwardConfig(d_ff=24, dropout=0.5)
    assert model.feedforward == MixtureOfExpertsConfig(n_experts=4, expert=expert)
    dense = model_with(tmp_path, "feedforward=moe", "feedforward.expert=gated", **given)
    assert dense.feedforward.expert == GatedFeedForwardConfig(d_ff=24, dropout=0.5)


def test_none_is_nothing_or_the_kind_of_that_name(tmp_path: Path) -> None:
    parts = '{n_heads = 2, qk_norm = {kind = "rmsnorm"}, value_residual = "learned"}'
    sets = ("position=none", "attention.qk_norm=none", "attention.value_residual=none")
    model = model_with(tmp_path, *sets, **{"model.attention": parts})
    assert model.position == NoPositionConfig()
    assert model.attention.qk_norm is model.attention.value_residual is None
    assert model_with(tmp_path, "attention.qk_norm=rmsnorm").attention.qk_norm == RMSNormConfig()


def test_cross_attention_stays_where_self_attention_goes(tmp_path: Path) -> None:
    model = model_with(tmp_path, "attention=recurrent", task="translation")
    assert isinstance(model, EncoderDecoderConfig)
    assert model.attention == RecurrentConfig()
    assert model.cross_attention == AttentionConfig(n_heads=2)
    model = model_with(tmp_path, "attention.n_kv_heads=1", task="translation")
    assert model.cross_attention is None
    assert model.cross_attention_config == AttentionConfig(n_heads=2, n_kv_heads=1)


def test_depth(tmp_path: Path) -> None:
    model = with_depth(recipe_of("language", tmp_path), 5).model
    assert isinstance(model, DecoderConfig)
    assert model.n_layers == 5


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        ("nrom=rmsnorm", "`sets` nrom: model.nrom is not a field. Did you mean 'norm'?"),
        ("norm=rmsnrm", "model.norm.kind = 'rmsnrm' does not exist. Did you mean 'rmsnorm'?"),
        ("norm.epss=1", "`sets` norm.epss: model.norm.epss is not a field. Did you mean 'eps'?"),
        ("attention.n_kv_head=1", "Did you mean 'n_kv_heads'?"),
        ("atention.n_kv_heads=1", "model.atention is not a field. Did you mean 'attention'?"),
        ("d_model.wide=1", "`sets` d_model.wide: d_model = 16 is not a table"),
        ("n_layers=two", "`sets` n_layers: model.n_layers = 'two'"),
        ("n_layers=none", "`sets` n_layers: model.n_layers = None"),
        ("norm=none", "`sets` norm: model.norm"),
        ("norm", "`sets` norm: write it as path=value"),
        ("norm=", "write it as path=value"),
        ("kind=encoder", "the model is of kind 'decoder'"),
        ("attention.n_kv_heads=0", "`sets` attention.n_kv_heads"),
        ("feedforward=lstm", "Valid: mlp, gated, clamped, moe"),
        ('position={kind = "rotary", thta = 5}', "Did you mean 'theta'?"),
        ("layer_pattern.1.norm=rmsnorm", "layers are counted from 0, and there are 1"),
        ("layer_pattern.first.norm=rmsnorm", "name a layer, counted from 0, and a part"),
        ("layer_pattern.0.nrm=rmsnorm", "Did you mean 'norm'?"),
        ("layer_pattern=[{}, {}]", "`sets` layer_pattern: model.layer_pattern has 2 entries, and"),
    ],
)
def test_a_mistake_is_one_message(one: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        model_with(tmp_path, one)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_task_stays(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the kind of the head is the task"):
        model_with(tmp_path, "head=tagging", task="classification")
