"""Training from existing weights: parts from the folder, matching weights, a report."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.runs.tiny import quiet, said, train_tiny, write_recipe
from torch import nn

from addnorm.errors import InputError
from addnorm.runs.export import export_run
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.recipes.starting_model import merged, transfer_matching_weights
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import TrainingSetup, train_run

GPT2_PARTS = {
    "model.position": "{kind = 'learned'}",
    "model.residual": "{kind = 'pre'}",
    "model.embedding": "{scale = 'one'}",
    "model.max_len": "32",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and the Hugging Face folder that is made of it."""
    run = train_tiny(tmp_path_factory.mktemp("run"), "language", **GPT2_PARTS)
    out = run.parent / "hf"
    export_run(Run.open(run), out, to="hf")
    return run, out


def without(text: str, *tables: str) -> str:
    """A recipe without some of its tables."""
    parts = text.split("\n[")
    return "\n[".join(p for p in parts if not p.startswith(tuple(f"{t}]" for t in tables)))


@pytest.mark.parametrize("which", [0, 1])
def test_the_model_and_tokenizer_are_those_of_the_folder(
    which: int, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    file = write_recipe(tmp_path, "language")
    file.write_text(without(file.read_text(), "tokenizer", "model"))
    recipe = read_recipe(file, {"train.start": str(folders[which]), "model.dropout": "0.25"})
    assert recipe.model.dropout == 0.25
    assert recipe.model.position.kind == "learned"
    prepared = TrainingSetup(recipe)
    start = Run.open(folders[0])
    for name, weight in start.weights.items():
        assert torch.equal(dict(prepared.model.named_parameters())[name], weight)
    assert prepared.tokenizers is not None
    text = "To be, Grüße!"
    assert prepared.tokenizers.source.encode(text) == start.tokenizers.source.encode(text)


def test_a_run_of_the_first_version_may_begin_another(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    old = Path(shutil.copytree(folders[0], tmp_path / "old"))
    config = old / "config.json"
    config.write_text(config.read_text().replace('"layer_pattern": []', '"cycle": [{}, {}]'))
    file = write_recipe(tmp_path, "language")
    file.write_text(without(file.read_text(), "tokenizer", "model"))
    start = {"train.start": str(old)}
    assert len(read_recipe(file, start).model.layer_pattern) == 2
    fewer = {"model.layer_pattern": "[{}]"}
    assert len(read_recipe(file, start | fewer).model.layer_pattern) == 1


def test_a_run_that_began_elsewhere_stands_alone(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    hf = tmp_path / "hf"
    hf.mkdir()
    for file in folders[1].iterdir():
        (hf / file.name).write_bytes(file.read_bytes())
    file = write_recipe(tmp_path, "language")
    file.write_text(without(file.read_text(), "tokenizer", "model"))
    console = quiet()
    recipe = read_recipe(file, {"train.start": str(hf), "train.steps": "2"})
    run = train_run(recipe, tmp_path / "run", resume=False, console=console)
    assert "weights taken over" in said(console)
    for one in hf.iterdir():
        one.unlink()
    again = Run.open(tmp_path / "run")
    assert again.tokenizers.source.vocab_size == run.tokenizers.source.vocab_size
    for name, weight in run.weights.items():
        assert torch.equal(again.weights[name], weight)


def test_another_head_is_new_and_reported(folders: tuple[Path, Path], tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "classification")
    file.write_text(without(file.read_text(), "tokenizer"))
    recipe = read_recipe(file, {"train.start": str(folders[0])})
    prepared = TrainingSetup(recipe)
    console = quiet()
    prepared.report(console)
    assert "new: head.proj.weight, head.proj.bias" in said(console)


@pytest.mark.parametrize(
    ("start", "match"),
    [("nowhere", r"r\.toml:\d+: .*nowhere"), ("empty", "neither a run folder nor one from")],
)
def test_what_cannot_be_begun_with(start: str, match: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    file = write_recipe(tmp_path, "language").rename(tmp_path / "r.toml")
    text = without(file.read_text(), "tokenizer", "model")
    file.write_text(text.replace("[train]", f'[train]\nstart = "{tmp_path / start}"'))
    with pytest.raises(InputError, match=match):
        read_recipe(file)


def test_two_tokenizers_are_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "language")
    with pytest.raises(InputError, match=r"leave \[tokenizer\] out"):
        read_recipe(file, {"train.start": str(folders[0])})


def test_tables_of_one_kind_are_merged() -> None:
    old = {"kind": "decoder", "d_model": 8, "norm": {"kind": "rmsnorm", "eps": 1e-3}}
    assert merged(old, {"norm": {"eps": 1.0}})["norm"] == {"kind": "rmsnorm", "eps": 1.0}
    assert merged(old, {"norm": {"kind": "layernorm"}})["norm"] == {"kind": "layernorm"}
    assert merged(old, {"d_model": 9}) == old | {"d_model": 9}


def test_nothing_that_fits_is_an_error() -> None:
    with pytest.raises(InputError, match="no weight has the name and shape"):
        transfer_matching_weights(
            nn.Linear(2, 3), {"weight": torch.zeros(3, 3), "other": torch.zeros(3)}
        )
