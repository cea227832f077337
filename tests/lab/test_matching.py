"""Matching: variants cost the same within two per cent, or are refused with the reason."""

from pathlib import Path

import pytest
from tests.lab.small import recipe_file

from addnorm.lab.grid import reader_of, variants_of
from addnorm.lab.matching import cost_of, flops_per_token, matched
from addnorm.runs.training import Prepared


@pytest.mark.parametrize("match", ["parameters", "flops"])
def test_a_variant_costs_what_the_first_costs(match, tmp_path: Path) -> None:
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


def test_what_is_near_enough_is_left_alone(tmp_path: Path) -> None:
    read = reader_of(recipe_file(tmp_path))
    variants = variants_of(read, {"model.norm": ["layernorm", "rmsnorm"]})
    found = matched(read, variants, cost_of("parameters", variants))
    assert found[1].adjusted == {}


def test_what_cannot_be_matched_is_refused(tmp_path: Path) -> None:
    read = reader_of(recipe_file(tmp_path))
    variants = variants_of(read, {"model.d_model": ["16", "128"]})
    [_, large] = matched(read, variants, cost_of("parameters", variants))
    assert large.recipe is None
    assert "cannot be matched by model.feedforward.d_ff" in large.refused
    variants = variants_of(read, {"model.feedforward.d_ff": ["16", "128"]})
    [_, varied] = matched(read, variants, cost_of("parameters", variants))
    assert "--match-by" in varied.refused
    variants = variants_of(read, {"model.d_model": ["32", "16"]})
    [_, other] = matched(read, variants, cost_of("parameters", variants), "model.no_such.field")
    assert "no_such" in other.refused


def test_flops_are_counted_by_hand(tmp_path: Path) -> None:
    """Attention counts all pairs: d = 16, 16 tokens a row, one layer, four times d within."""
    recipe = reader_of(recipe_file(tmp_path))({})
    prepared = Prepared(recipe)
    assert prepared.tokenizers is not None
    vocabulary = prepared.tokenizers.source.vocab_size
    products = 2 * (4 * 16 * 16 + 2 * 16 * 64 + 16 * vocabulary)
    assert flops_per_token(recipe, prepared) == products + 2 * 2 * 16 * 16
