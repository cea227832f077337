"""Building a recipe's model: sizes, weights from a file, and mismatches."""

import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.runs.tiny import train_tiny, write_recipe

from addnorm.data.encoding import Tokenizers
from addnorm.errors import InputError
from addnorm.runs.build import WEIGHTS, build_model, check_model, load_into, save_model
from addnorm.runs.recipe import Recipe, read_recipe
from addnorm.runs.run import Run
from addnorm.runs.training import Prepared
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


HUGE = {
    "model.d_model": str(2**20),
    "model.vocab_size": str(10**12),
    "model.n_layers": str(10**6),
    "model.max_len": str(10**15),
}


@pytest.mark.parametrize("field", HUGE)
def test_a_size_that_no_machine_has_is_refused_before_anything(field: str, tmp_path: Path) -> None:
    """In a recipe and in a run folder, within seconds and without the memory."""
    recipe = write_recipe(tmp_path, "language")
    given = {field: HUGE[field], "model.position": "learned"}
    start = time.monotonic()
    with pytest.raises(InputError, match=r"GiB in float32, and this machine has|n_layers"):
        Prepared(read_recipe(recipe, given))
    assert time.monotonic() - start < 5
    (tmp_path / "r").mkdir()
    run = train_tiny(tmp_path / "r", "language")
    facts = json.loads((run / "config.json").read_text())
    facts["recipe"]["model"][field.removeprefix("model.")] = int(HUGE[field])
    facts["recipe"]["model"]["position"] = {"kind": "learned"}
    (run / "config.json").write_text(json.dumps(facts))
    start = time.monotonic()
    with pytest.raises(InputError, match=r"GiB in float32, and this machine has|n_layers"):
        Run.open(run)
    assert time.monotonic() - start < 5
