"""The model of a recipe: its sizes, its weights from a file, and whether they are its own."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.runs.tiny import write_recipe

from addnorm.data.encoding import Tokenizers
from addnorm.errors import InputError
from addnorm.runs.build import WEIGHTS, build_model, check_model, load_into, save_model
from addnorm.runs.recipe import Recipe, read_recipe
from addnorm.train.average import weights_of


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    return read_recipe(write_recipe(tmp_path, "translation"))


def test_the_sizes_are_those_of_the_tokenizers(recipe: Recipe) -> None:
    tokenizers = Tokenizers.train(recipe.tokenizer, recipe.corpus())
    model = build_model(recipe, tokenizers, ())
    assert model.source_embed.tokens.num_embeddings == tokenizers.source.vocab_size
    small = replace(recipe, model=replace(recipe.model, vocab_size=5))
    with pytest.raises(InputError, match="vocab_size = 5 is too small: the tokenizer has"):
        build_model(small, tokenizers, ())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_there_and_back(recipe: Recipe, dtype: torch.dtype, tmp_path: Path) -> None:
    tokenizers = Tokenizers.train(recipe.tokenizer, recipe.corpus())
    model = build_model(recipe, tokenizers, ()).to(dtype)
    save_model(tmp_path, model)
    other = build_model(recipe, tokenizers, ())
    assert load_into(other, tmp_path / WEIGHTS) == dtype
    for name, weight in weights_of(other).items():
        assert torch.equal(weight, weights_of(model)[name].to(weight.dtype))
    check_model(other, recipe, tokenizers, ())
    wider = replace(recipe, model=replace(recipe.model, d_model=32))
    with pytest.raises(InputError, match=r"has shape \(\d+, 16\), expected \(\d+, 32\)"):
        check_model(other, wider, tokenizers, ())
