"""The output of `info` and `--dry-run`."""

import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console, RenderableType
from tests.runs.tiny import RECIPES, train_tiny, write_recipe
from tests.test_house import write_gpt2

from addnorm.errors import InputError
from addnorm.models import EncoderConfig
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.heads import ClassificationHeadConfig, PoolerHeadConfig, SpanHeadConfig
from addnorm.runs.description import describe, expectation, expected_memory, planned, too_large
from addnorm.runs.recipes.recipe import Recipe, read_recipe
from addnorm.runs.train import cost
from addnorm.runs.train.cost import PeakMemory, estimate
from addnorm.runs.train.train_run import TrainingSetup
from addnorm.training.settings import TrainConfig

RunOf = Callable[[str], Path]


def shown(what: RenderableType) -> str:
    console = Console(file=io.StringIO(), width=150)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("task", RECIPES)
def test_a_run_and_its_recipe(task: str, run_of: RunOf) -> None:
    text = shown(describe(run_of(task)))
    for expected in (task, "parameters", "trained", "validation", "attention", "n_heads = 2"):
        assert expected in text
    assert ("good" in text) == (task == "classification")
    text = shown(describe(run_of(task).parent / f"{task}.toml"))
    assert task in text
    assert "d_model = 16" in text
    assert "max_len" not in text or task == "tagging", "what is at its default is not shown"


def test_a_tokenizer_that_was_learnt_from_a_sample_says_so(tmp_path: Path) -> None:
    tables = {"tokenizer.kind": "bpe", "tokenizer.vocab_size": "280", "tokenizer.sample": "100"}
    text = shown(describe(train_tiny(tmp_path, "classification", **tables)))
    assert re.search(r"tokenizer +learnt from one of \d+ texts: tokenizer.sample says", text)


def test_lists_are_not_markup(run_of: RunOf) -> None:
    assert 'train = ["train.en", "train.de"]' in shown(describe(run_of("translation")))


def test_weights_of_a_hugging_face_folder_are_held_against_its_config(tmp_path: Path) -> None:
    write_gpt2(tmp_path)
    assert "fit config.json" in shown(describe(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    for change, problem in (
        (
            {"n_layer": config["n_layer"] + 1},
            r"do not fit config.json: missing transformer\.h\.1\.",
        ),
        ({"n_inner": 12}, r"has shape \(\d+, 16\), expected \(12, 16\)"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        with pytest.raises(InputError, match=problem):
            describe(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    assert "no model.safetensors" in shown(describe(tmp_path))
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert "no model.safetensors, but pytorch_model.bin, a pickle" in shown(describe(tmp_path))


def test_an_unfinished_run_and_a_half_written_journal(run_of: RunOf, tmp_path: Path) -> None:
    run = Path(shutil.copytree(run_of("language"), tmp_path / "run"))
    (run / "model.safetensors").unlink()
    with (run / "metrics.jsonl").open("ab") as journal:
        journal.write(b'[1]\n{"step": 9, "loss": "x"}\n\xff\n{"step": 5, "valid_lo')
    text = shown(describe(run))
    assert "training not finished" in text
    assert "(after step 4)" in text
    assert "4 of metrics.jsonl, left out here" in text
    shutil.rmtree(run / "checkpoints")
    (run / "metrics.jsonl").unlink()
    text = shown(describe(run))
    assert "none" in text
    assert "validation" not in text


def test_a_model_without_a_task_is_shown() -> None:
    model = EncoderConfig(d_model=8, attention=AttentionConfig(n_heads=2), head=PoolerHeadConfig())
    text = shown(planned(Recipe(model=model, train=TrainConfig(steps=1))))
    assert re.search(r"head +pooler", text)


def test_settings_that_do_not_act_are_left_out() -> None:
    heads = {"span": SpanHeadConfig(), "classification": ClassificationHeadConfig()}
    shows = {name: shown(planned(recipe_of(head))) for name, head in heads.items()}
    assert "decoding" not in shows["span"] + shows["classification"]
    assert "cross_entropy" not in shows["span"]
    assert "cross_entropy" in shows["classification"]


def recipe_of(head: Any) -> Recipe:
    return Recipe(model=EncoderConfig(d_model=8, n_layers=1, head=head), train=TrainConfig(steps=1))


def test_neither_run_nor_recipe_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    for what in (tmp_path, tmp_path / "nothing", tmp_path / "no.toml", tmp_path / "folder.toml"):
        with pytest.raises(InputError):
            describe(what)


def test_what_training_will_take(tmp_path: Path) -> None:
    recipe = read_recipe(
        write_recipe(tmp_path, "language"),
        {"train.steps": "1000", "train.precision": "bfloat16", "train.device": "cpu"},
    )
    text = shown(expectation(recipe, estimate(TrainingSetup(recipe), n_timed=1)))
    for expected in ("1,000 (11 an epoch)", "a step", "MiB", "about", "on this cpu in bfloat16"):
        assert expected in text
    assert "decoder" in shown(planned(recipe))


PEAK = PeakMemory(
    device=torch.device("cpu"),
    process=300 * 2**20,
    weights=3 * 2**20,
    optimizer=6 * 2**20,
    average=0,
    activations=40 * 2**20,
    other=11 * 2**20,
    before=0,
)


def test_what_memory_is_for() -> None:
    text = shown(expected_memory(PEAK))
    for line in ("weights +3.0 MiB", "activations +40 MiB", "together +360 MiB"):
        assert re.search(line, text)
    assert "average" not in text
    assert "while reading the data" in shown(expected_memory(replace(PEAK, before=2**30)))


def test_too_little_memory_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, said in ((2**40, False), (None, False), (2**28, True)):
        monkeypatch.setattr(cost, "total_memory", lambda there=there: there)
        assert (too_large(PEAK) is not None) is said
    assert str(too_large(PEAK)).startswith(
        "training takes about 360 MiB and this machine has 256 MiB: smaller batches"
    )


def test_a_language_model_that_names_no_decoding_samples(run_of: RunOf) -> None:
    assert "decoding  sample" in shown(describe(run_of("language")))
    assert "decoding  beam" in shown(describe(run_of("translation")))
