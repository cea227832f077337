"""Planning a recipe: its sizes without data, its step, and the plans that `train` can run."""

from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.errors import InputError
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.attention.patterns import WindowPatternConfig
from addnorm.nn.delta import GatedDeltaConfig
from addnorm.nn.hyper_connections import HyperConnectionsConfig
from addnorm.nn.init import without_values
from addnorm.nn.norms import BatchNormConfig
from addnorm.nn.positions import T5BiasConfig
from addnorm.nn.residuals import PreNormConfig
from addnorm.runs.planning import (
    Outline,
    batches,
    plan_recipe,
    plan_training,
    refusal,
    training_of,
)
from addnorm.runs.recipes.recipe import Recipe, read_recipe
from addnorm.training.parallel.planner.cluster import CARDS, LINKS, Cluster
from addnorm.training.parallel.planner.plan import Plan

TEXT = """
[data]
kind = "text"
train = "nowhere.txt"

[tokenizer]
kind = "bpe"
vocab_size = 300

[model]
kind = "decoder"
d_model = 16
n_layers = 4
attention = { n_heads = 4 }
residual = { kind = "pre" }

[train]
steps = 100
accumulate = 2
batching = { kind = "windows", batch_size = 8, seq_len = 32 }
"""
CPUS = Cluster(4, CARDS["cpu"], LINKS["loopback"], LINKS["ethernet25"], 8)


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "my.toml").write_text(TEXT)
    return read_recipe(tmp_path / "my.toml")


def test_data_are_not_read_and_the_step_is_that_of_the_recipe(recipe: Recipe) -> None:
    training = training_of(recipe, CPUS)
    assert (training.rows, training.seq_len, training.steps) == (16, 32, 100)
    planned = plan_recipe(recipe, CPUS)
    assert all(each.plan.cards == 4 for each in planned.plans.estimates)
    assert all(each.days is not None for each in planned.plans.estimates)


@pytest.mark.parametrize(
    "model",
    [
        DecoderConfig(d_model=8, n_layers=7, attention=AttentionConfig(n_heads=2)),
        DecoderConfig(
            d_model=8,
            n_layers=9,
            attention=AttentionConfig(n_heads=2),
            residual=PreNormConfig(first=False),
            layer_pattern=(
                LayerConfig(pattern=WindowPatternConfig(size=4)),
                LayerConfig(),
                LayerConfig(attention=AttentionConfig(n_heads=4)),
            ),
        ),
        DecoderConfig(
            d_model=8, n_layers=5, attention=AttentionConfig(n_heads=2), position=T5BiasConfig()
        ),
        EncoderConfig(d_model=8, n_layers=5, attention=AttentionConfig(n_heads=2)),
        EncoderDecoderConfig(
            d_model=8, n_layers=5, n_decoder_layers=3, attention=AttentionConfig(n_heads=2)
        ),
    ],
    ids=["decoder", "pattern", "shared", "encoder", "encoder_decoder"],
)
@pytest.mark.parametrize("tensor", [1, 2])
def test_an_outline_has_the_weights_of_the_model(
    recipe: Recipe, model: DecoderConfig, tensor: int
) -> None:
    """Of two processes each has half of what is split, and all of what is not."""
    sizes = Outline.of(replace(recipe, model=model)).sizes(tensor)
    with without_values():
        built = model.build(300)
    whole = sum(p.numel() for p in built.parameters())
    parts = [sizes.embed, *sizes.layers, sizes.head]
    held = sum(part.size for part in parts) + sum(w.size for w in sizes.shared)
    held -= sum(weight.size for weight in sizes.tied)
    assert held == whole if tensor == 1 else whole / 2 <= held < whole


def test_a_missing_size_is_named(recipe: Recipe, tmp_path: Path) -> None:
    text = TEXT.replace("bpe", "char").replace("vocab_size = 300", "")
    (tmp_path / "char.toml").write_text(text)
    with pytest.raises(InputError, match=r"tokenizer 'char' is not known: .*`model\.vocab_size"):
        plan_recipe(read_recipe(tmp_path / "char.toml"), CPUS)
    with pytest.raises(InputError, match="101 cards: rows of a step, layers, heads and positions"):
        plan_recipe(recipe, replace(CPUS, cards=101))


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("[train]", "r_drop = 0.5"),
        ("[model]", "exits = [2]"),
        ("[model]", "mtp = { depth = 1 }"),
    ],
)
def test_a_setting_that_is_not_counted_is_refused(tmp_path: Path, table: str, line: str) -> None:
    (tmp_path / "my.toml").write_text(TEXT.replace(table, f"{table}\n{line}"))
    with pytest.raises(InputError, match=f"{line.split()[0]}: plan does not count what it costs"):
        plan_recipe(read_recipe(tmp_path / "my.toml"), CPUS)


def test_rows_that_do_not_divide_are_planned_as_they_are_trained(tmp_path: Path) -> None:
    """Of 18 rows, four processes take 4, 5, 4 and 5 at a time, or half of that in two passes."""
    (tmp_path / "my.toml").write_text(TEXT.replace("batch_size = 8", "batch_size = 9"))
    fields = {"model.vocab_size": "300"}
    planned = plan_training(tmp_path / "my.toml", fields, cards=4, card="cpu")
    rows = {each.plan.rows for each in planned.plans.estimates if each.plan.data == 4}
    assert rows <= {3, 5}
    assert rows
    for each in planned.plans.estimates:
        chosen = batches(planned.recipe, each.plan, planned.training)
        assert chosen["batching"].batch_size * chosen["accumulate"] == 18
        assert planned.refusal(each.plan) is None
    assert planned.rows()[0]["why"] == ""
    with pytest.raises(InputError, match="`overrides` are for a recipe in a file"):
        plan_training(planned.recipe, fields, cards=4, card="cpu")


def test_plans_that_train_cannot_run_say_why(recipe: Recipe) -> None:
    training = training_of(recipe, CPUS)
    assert refusal(recipe, Plan(data=4), training) is None
    assert refusal(recipe, Plan(data=2, shard=True, tensor=2), training) is None
    norm = replace(recipe, model=replace(recipe.model, norm=BatchNormConfig()))
    assert "batchnorm of layer 0 would normalise" in (refusal(norm, Plan(data=4), training) or "")


def test_each_step_of_a_plan_has_the_rows_of_the_recipe(recipe: Recipe) -> None:
    training = training_of(recipe, CPUS)
    fields = batches(recipe, Plan(data=4, rows=2, checkpointing="block"), training)
    assert fields["batching"].batch_size * fields["accumulate"] == 16
    assert fields["activation_checkpointing"] == "block"


def test_a_part_without_figures_is_named_with_its_layer(recipe: Recipe) -> None:
    pattern = (
        LayerConfig(),
        LayerConfig(),
        LayerConfig(),
        LayerConfig(attention=GatedDeltaConfig()),
    )
    model = replace(recipe.model, n_layers=8, layer_pattern=pattern)
    with pytest.raises(InputError, match="layer 3: plan has no figures for GatedDelta: it knows"):
        plan_recipe(replace(recipe, model=model), CPUS)
    with pytest.raises(InputError, match="layer 0: plan has no figures for HyperConnection"):
        plan_recipe(
            replace(recipe, model=replace(recipe.model, residual=HyperConnectionsConfig())), CPUS
        )
