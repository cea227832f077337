"""Matching: variants cost the same within two per cent, or are refused with the reason."""

from pathlib import Path

import pytest
from tests.lab.small import recipe_file

from addnorm.errors import InputError
from addnorm.lab.studies.matching import cost_of, flops_per_token, matched
from addnorm.lab.studies.variants import reader_of, variants_of
from addnorm.runs.files.weights import count_parameters
from addnorm.runs.train.train_run import TrainingSetup


@pytest.mark.parametrize("match", ["parameters", "flops"])
def test_variants_are_matched_to_the_first_in_cost(match, tmp_path: Path) -> None:
    read = reader_of(recipe_file(tmp_path))
    variants = variants_of(read, {"model.d_model": ["32", "16", "24"]})
    cost = cost_of(match, variants)
    found = matched(read, variants, cost)
    costs = [cost(one.recipe) for one in found if one.recipe is not None]
    assert len(costs) == 3
    for one in costs[1:]:
        assert one == pytest.approx(costs[0], rel=0.02)
    assert found[0].adjusted == {}
    assert all("model.feedforward.d_ff" in one.adjusted for one in found[1:])


def test_a_near_cost_is_not_adjusted(tmp_path: Path) -> None:
    read = reader_of(recipe_file(tmp_path))
    variants = variants_of(read, {"model.norm": ["layernorm", "rmsnorm"]})
    found = matched(read, variants, cost_of("parameters", variants))
    assert found[1].adjusted == {}


def test_an_unmatchable_variant_is_refused(tmp_path: Path) -> None:
    read = reader_of(recipe_file(tmp_path))
    variants = variants_of(read, {"model.d_model": ["16", "128"]})
    [_, large] = matched(read, variants, cost_of("parameters", variants))
    assert large.recipe is None
    assert "cannot be matched by model.feedforward.d_ff" in large.refused
    variants = variants_of(read, {"model.feedforward.d_ff": ["16", "128"]})
    [_, varied] = matched(read, variants, cost_of("parameters", variants))
    assert "match by another field" in varied.refused


def test_flops_are_counted_by_hand(tmp_path: Path) -> None:
    """Attention counts all pairs: d = 16, 16 tokens a row, one layer, four times d within."""
    recipe = reader_of(recipe_file(tmp_path))({})
    prepared = TrainingSetup(recipe)
    assert prepared.tokenizers is not None
    vocabulary = prepared.tokenizers.source.vocab_size
    products = 2 * (4 * 16 * 16 + 2 * 16 * 64 + 16 * vocabulary)
    assert flops_per_token(recipe, prepared) == products + 2 * 2 * 16 * 16


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("model.d_f", "model has no 'd_f'.*Did you mean 'd_ff'|model has no 'd_f'"),
        ("model.norm", "is not an integer"),
        ("modle.d_model", "the recipe has no 'modle'.*Did you mean 'model'"),
        ("model.d_model.x", "model.d_model has no 'x'"),
    ],
)
def test_a_missing_field_is_named(field: str, message: str, tmp_path: Path) -> None:
    """Before anything else, where the variants cost the same already too."""
    read = reader_of(recipe_file(tmp_path))
    variants = variants_of(read, {"model.norm": ["layernorm", "rmsnorm"]})
    with pytest.raises(InputError, match=f"`match_by = {field}`: "):
        matched(read, variants, lambda _: 1.0, field)
    with pytest.raises(InputError, match=message):
        matched(read, variants, lambda _: 1.0, field)


def test_a_width_that_heads_do_not_divide_is_skipped(tmp_path: Path) -> None:
    read = reader_of(
        recipe_file(tmp_path), {"model.attention.n_heads": "4", "model.d_model": "256"}
    )
    variants = variants_of(read, {"model.n_layers": ["1", "2"]})
    cost = cost_of("parameters", variants)
    [first, second] = matched(read, variants, cost, "model.d_model")
    assert first.recipe is not None
    assert second.recipe is not None, second.refused
    assert second.recipe.model.d_model % 4 == 0
    assert cost(second.recipe) == pytest.approx(cost(first.recipe), rel=0.02)


@pytest.mark.parametrize(
    ("match", "vary"),
    [
        ("parameters", {"tokenizer": ['{kind = "char"}', '{kind = "bpe", vocab_size = 300}']}),
        ("flops", {"train.batching.seq_len": ["16", "64"]}),
    ],
)
def test_a_cost_is_that_of_its_own_vocabulary_and_batches(
    match, vary: dict[str, list[str]], tmp_path: Path
) -> None:
    read = reader_of(recipe_file(tmp_path), {"model.d_model": "64"})
    variants = variants_of(read, vary)
    found = matched(read, variants, cost_of(match, variants))
    for one in found:
        assert one.recipe is not None, one.refused
    sizes = []
    for one in found:
        prepared = TrainingSetup(one.recipe)
        if match == "flops":
            sizes.append(flops_per_token(one.recipe, prepared))
        else:
            sizes.append(count_parameters(one.recipe, prepared.tokenizers, prepared.labels))
    assert sizes[1] == pytest.approx(sizes[0], rel=0.02)
