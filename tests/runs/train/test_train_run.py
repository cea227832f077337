"""Training a run folder: early errors, allowed changes on resume, identical results."""

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file
from tests.disks import fill
from tests.runs.tiny import quiet, said, train_tiny, write_recipe

from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError
from addnorm.runs.files.folder import read_settings
from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.train import train_run as training
from addnorm.runs.train.train_run import TrainingSetup, train_run
from addnorm.training import interruptions
from addnorm.training.interruptions import ExhaustedError

RunOf = Callable[[str], Path]


def refusal(file: Path, folder: Path, *, resume: bool = False, **overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        train_run(read_recipe(file, overrides), folder, resume=resume, console=quiet())
    return str(caught.value)


def test_what_was_left_out_is_told(tmp_path: Path) -> None:
    console = quiet()
    recipe = read_recipe(write_recipe(tmp_path, "translation"))
    train_run(recipe, tmp_path / "run", resume=False, console=console)
    assert "train: 19 read, 18 used, 1 left out: empty target" in said(console)
    assert f"{tmp_path}/train.de:19" in said(console)


def test_a_path_with_brackets_is_not_markup(tmp_path: Path) -> None:
    console, folder = quiet(), tmp_path / "[bold] [red]x"
    folder.mkdir()
    recipe = read_recipe(write_recipe(folder, "translation"))
    train_run(recipe, folder / "run", resume=False, console=console)
    assert f"{folder}/train.de:19" in said(console)


def test_a_run_is_not_overwritten(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "classification")
    assert "holds a run already" in refusal(tmp_path / "classification.toml", run)
    for path in (run / "checkpoints").glob("*/*"):
        path.unlink()
    for path in (run / "checkpoints").iterdir():
        path.rmdir()
    assert "holds a run already" in refusal(tmp_path / "classification.toml", run)


def test_the_folder_may_not_be_a_file(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "language")
    assert "is a file" in refusal(file, file)


def test_resumed_training_equals_uninterrupted_training(tmp_path: Path) -> None:
    """Two steps, then two more: the weights are those of four; what changed is told and kept."""
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    keep = {"train.schedule.warmup": "1", "train.schedule.decay": "0"}
    whole = train_tiny(tmp_path / "whole", "language", **keep)
    parts = train_tiny(tmp_path / "parts", "language", **{"train.steps": "2", **keep})
    console = quiet()
    file = tmp_path / "parts" / "language.toml"
    recipe = read_recipe(file, keep)
    train_run(recipe, parts, resume=True, console=console)
    assert "train.steps: 2 so far, 4 from here on" in said(console)
    assert read_settings(parts).recipe == recipe
    one, other = (load_file(folder / "model.safetensors") for folder in (whole, parts))
    assert all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("model.d_model", "32", "model.d_model is 16 there and 32 here"),
        ("tokenizer.vocab_size", "20", "tokenizer.vocab_size is 30000 there and 20 here"),
        ("data.lowercase", "true", "data.lowercase is False there and True here"),
        ("train.lr", "1", "train.lr is 0.001 there and 1.0 here"),
        ("train.ema", "0.9", "train.ema is None there and 0.9 here"),
        ("train.batching.tokens", "99", "train.batching.tokens is 64 there and 99 here"),
    ],
)
def test_another_run_is_not_resumed(field: str, value: str, expected: str, run_of: RunOf) -> None:
    run = run_of("translation")
    before = (run / "config.json").read_bytes()
    file = run.parent / "translation.toml"
    assert expected in refusal(file, run, resume=True, **{field: value})
    assert (run / "config.json").read_bytes() == before


def test_resuming_without_a_run_begins_one_and_reports_it(tmp_path: Path) -> None:
    console = quiet()
    recipe = read_recipe(write_recipe(tmp_path, "classification"))
    train_run(recipe, tmp_path / "new", resume=True, console=console)
    assert "no run to resume" in said(console)
    assert (tmp_path / "new" / "model.safetensors").exists()


def test_resuming_takes_the_tokenizer_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_tiny(tmp_path, "translation")
    before = (run / "tokenizer.json").read_bytes()
    monkeypatch.delattr(Tokenizers, "train")
    recipe = read_recipe(tmp_path / "translation.toml", {"train.steps": "5"})
    train_run(recipe, run, resume=True, console=quiet())
    assert (run / "tokenizer.json").read_bytes() == before


def test_a_damaged_run_is_not_resumed(tmp_path: Path) -> None:
    run = train_tiny(tmp_path, "classification")
    (run / "labels.json").write_text("[")
    assert "labels.json: damaged" in refusal(tmp_path / "classification.toml", run, resume=True)


def test_data_of_another_task_and_missing_data(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "translation")
    data = f'{{kind = "text", train = "play.txt", root = "{tmp_path}"}}'
    said = refusal(file, tmp_path / "r", data=data)
    assert "use model.kind = 'decoder'" in said
    (tmp_path / "train.de").unlink()
    assert "train.de does not exist" in refusal(file, tmp_path / "r")
    assert not (tmp_path / "r").exists(), "nothing is written for a recipe that cannot begin"


def test_best_weights_need_validation(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "classification")
    file.write_text(file.read_text().replace('valid = "valid.txt"\n', ""))
    assert "validation" in refusal(file, tmp_path / "r")


def test_precision_is_refused_before_the_data_are_read(tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "language")
    recipe = read_recipe(
        file, {"train.precision": "float16", "train.device": "cpu", "data.train": "none"}
    )
    with pytest.raises(InputError, match="float16"):
        TrainingSetup(recipe)


def test_a_full_disk_under_the_last_weights(
    disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run ends with all its steps saved, and going on writes the weights alone."""
    monkeypatch.setattr(interruptions, "WAIT", 0.3)
    save = training.save_model
    monkeypatch.setattr(training, "save_model", lambda *given: (fill(disk), save(*given)))
    recipe = read_recipe(write_recipe(tmp_path, "language"))
    with pytest.raises(ExhaustedError, match=r"^the model cannot be written: No space left"):
        train_run(recipe, disk / "run", resume=False, console=quiet())
    assert not (disk / "run" / "model.safetensors").exists()
    assert not [path for path in (disk / "run").rglob("*") if "partial" in path.name]
    (disk / "ballast").unlink()
    monkeypatch.setattr(training, "save_model", save)
    train_run(recipe, disk / "run", resume=True, console=quiet())
    straight = train_run(recipe, tmp_path / "straight", resume=False, console=quiet())
    assert (disk / "run" / "model.safetensors").read_bytes() == (
        straight.folder / "model.safetensors"
    ).read_bytes()
