"""Building a recipe's model: sizes, weights from a file, and mismatches."""

import json
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.tiny import train_tiny, write_recipe

import addnorm as an
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.models.weights import weights_of
from addnorm.runs.files.weights import WEIGHTS, build_model, check_model, load_into, save_model
from addnorm.runs.recipes.recipe import Recipe, read_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import TrainingSetup


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
        TrainingSetup(read_recipe(recipe, given))
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


def test_a_model_that_was_changed_after_the_build_is_not_saved_as_another(tmp_path: Path) -> None:
    text = an.text(["to be or not to be\n" * 20])
    config = an.DecoderConfig(d_model=8, n_layers=1, attention=an.AttentionConfig(n_heads=2))
    run = an.train(config, text, tokenizer="char", steps=1)

    def windowed(model: Any) -> None:
        window = an.AttentionConfig(n_heads=2, pattern=an.WindowPatternConfig(size=2))
        other = replace(config, attention=window).build(5)
        model.stack.blocks[0].attention = other.stack.blocks[0].attention

    changes: dict[str, Callable[[Any], object]] = {
        r"attention\.pattern": windowed,
        r"feedforward\.forward hooks": lambda m: m.stack.blocks[
            0
        ].feedforward.register_forward_hook(lambda *given: 2 * given[2]),
        r"norm\.eps \(0\.7\).*was 1e-05": lambda m: setattr(
            m.stack.blocks[0].attention_residual.norm, "eps", 0.7
        ),
        r"feedforward\.forward": lambda m: setattr(
            m.stack.blocks[0].feedforward, "forward", lambda x: x
        ),
    }
    for said, change in changes.items():
        model = deepcopy(run.model)
        change(model)
        with pytest.raises(InputError, match=said):
            replace(run, model=model).save(tmp_path / "changed")
        assert not (tmp_path / "changed").exists()
    run.save(tmp_path / "same")
