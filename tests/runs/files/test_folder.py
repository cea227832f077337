"""The run folder: round trips, and one message for each kind of damage."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.runs.tiny import RECIPES, write_recipe

from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.models.layers import LayerConfig
from addnorm.nn.attention import WindowPatternConfig
from addnorm.runs.files.folder import read_settings, write_settings
from addnorm.runs.inference.text import classify
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.run import Run
from addnorm.runs.saving import write_around

RunOf = Callable[[str], Path]


@pytest.fixture
def copied(run_of: RunOf, tmp_path: Path) -> Path:
    """A run of a classifier that may be damaged."""
    return Path(shutil.copytree(run_of("classification"), tmp_path / "copied"))


def refusal(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        Run.open(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("task", RECIPES)
def test_a_run_opens_as_it_was_saved(task: str, run_of: RunOf) -> None:
    run = Run.open(run_of(task))
    assert run.task == task
    assert bool(run.labels) == (task not in ("language", "translation"))
    assert not any(module.training for module in run.model.modules())
    saved = load_file(run.folder / "model.safetensors")
    assert all(torch.equal(saved[n], p) for n, p in run.model.named_parameters())


def test_separate_tokenizers_and_stale_files(run_of: RunOf, tmp_path: Path) -> None:
    recipe = read_recipe(
        write_recipe(tmp_path, "translation"),
        {"tokenizer.joint": "false", "model.share_embeddings": "false"},
    )
    corpus = recipe.data.load()
    folder = tmp_path / "r"
    trained = Run.open(run_of("translation"))
    for joint in (recipe, trained.recipe, recipe):
        tokenizers = Tokenizers.train(joint.tokenizer, corpus)
        run = Run(folder, joint, tokenizers, ("stale",), trained.model, variables=("stale",))
        write_around(folder, run)
        write_around(folder, replace(run, labels=(), variables=()))
        names = {path.name for path in folder.iterdir()}
        both = {"source.tokenizer.json", "target.tokenizer.json"}
        assert names == {"config.json"} | (both if joint is recipe else {"tokenizer.json"})
        back = read_settings(folder)
        assert back.recipe == joint
        assert (back.tokenizers.source is back.tokenizers.target) == (joint is not recipe)


def test_a_run_of_the_first_version_opens(copied: Path) -> None:
    file = copied / "config.json"
    facts = json.loads(file.read_text())
    layers = [{"pattern": {"kind": "window", "size": 3}, "position": None}]
    del facts["recipe"]["model"]["layer_pattern"]
    facts["recipe"]["model"]["cycle"] = layers
    file.write_text(json.dumps(facts))
    run = Run.open(copied)
    assert [layer.pattern for layer in run.recipe.model.layer_pattern] == [
        WindowPatternConfig(size=3)
    ]
    assert run.model.stack.patterns[0].reach == (2, 2)
    override = {"model.layer_pattern": "[{}]"}
    assert Run.open(copied, override).recipe.model.layer_pattern == (LayerConfig(),)


def test_what_is_no_run(tmp_path: Path, copied: Path) -> None:
    assert "no such folder" in refusal(tmp_path / "nothing" / "here")
    assert "a file, not a run folder" in refusal(copied / "config.json")
    assert refusal(tmp_path / "copide").endswith("Did you mean 'copied'?")


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "labels.json", "model.safetensors"]
)
@pytest.mark.parametrize("damage", ["truncated", "empty", "bytes", "missing", "other"])
def test_every_damaged_file_is_named(name: str, damage: str, copied: Path) -> None:
    file = copied / name
    content = file.read_bytes()
    match damage:
        case "truncated":
            file.write_bytes(content[: len(content) // 2])
        case "empty":
            file.write_bytes(b"")
        case "bytes":
            file.write_bytes(b"\xff\x00" * 50)
        case "missing":
            file.unlink()
        case _:
            file.write_text("{}")
    said = refusal(copied)
    assert str(copied) in said
    if damage == "missing" and name == "model.safetensors":
        assert "training has not finished" in said
    else:
        assert name in said


@pytest.mark.parametrize("labels", ['{"good": 1}', "[1, 2]", "[]", "null", '["good", ["bad"]]'])
def test_labels_of_a_wrong_type(labels: str, copied: Path) -> None:
    (copied / "labels.json").write_text(labels)
    assert "not a list of names" in refusal(copied)


@pytest.mark.parametrize(
    "config", ["[]", '"x"', '{"format": 2, "recipe": {}}', '{"format": 1, "recipe": []}']
)
def test_config_of_a_wrong_type(config: str, copied: Path) -> None:
    (copied / "config.json").write_text(config)
    assert "not a run of this version" in refusal(copied)


def test_a_field_of_a_wrong_type(copied: Path) -> None:
    facts = json.loads((copied / "config.json").read_text())
    facts["recipe"]["model"]["d_model"] = "wide"
    (copied / "config.json").write_text(json.dumps(facts))
    assert refusal(copied).startswith(f"{copied}/config.json: model.d_model = 'wide'")


def test_weights_of_another_model_are_named(copied: Path) -> None:
    weights = load_file(copied / "model.safetensors")
    first, second, *_ = sorted(weights)
    weights["extra"] = weights.pop(first)
    weights[second] = torch.zeros(2, 3, 4)
    save_file(weights, copied / "model.safetensors")
    (copied / "digests.json").unlink()  # changed on purpose
    said = refusal(copied)
    assert f"missing {first}" in said
    assert "unexpected extra" in said
    assert f"{second} has shape (2, 3, 4), expected" in said
    assert "(3 problems)" in said


def test_overrides_are_blamed(copied: Path) -> None:
    assert Run.open(copied, {"eval.batch_size": "3"}).recipe.eval.batch_size == 3
    with pytest.raises(InputError, match=r"^`eval\.batch_sze`: eval\.batch_sze is not a field"):
        Run.open(copied, {"eval.batch_sze": "3"})


def test_a_run_needs_nothing_but_its_folder(copied: Path) -> None:
    assert classify(Run.open(copied), ["a fine day"])[0].label in ("good", "bad")


@pytest.mark.parametrize("value", ["1e300", "1e-300", "0.1"])
def test_every_number_survives_the_folder(value: str, tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, "language"), {"train.clip": value})
    tokenizers = Tokenizers.train(recipe.tokenizer, recipe.data.load())
    write_settings(tmp_path / "r", recipe, tokenizers, ())
    assert read_settings(tmp_path / "r").recipe == recipe
