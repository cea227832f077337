"""`addnorm train`: all tasks, resuming, the dry run, and shortened recipes."""

import gzip
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet
from tests.runs.tiny import RECIPES, write_recipe

from addnorm.runs.run import Run
from addnorm.runs.train import cost

Command = Callable[..., tuple[int, str, str]]
COMMAND = [sys.executable, "-m", "addnorm"]
OURS = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("task", RECIPES)
def test_train_evaluate_and_use(task: str, tmp_path: Path, addnorm: Command) -> None:
    recipe, run = write_recipe(tmp_path, task), tmp_path / "r"
    assert addnorm("train", recipe, "--out", run, "--train.lr", "3e-4")[0] == 0
    assert json.loads((run / "config.json").read_text())["recipe"]["train"]["lr"] == 3e-4
    code, out, _ = addnorm("evaluate", run, "--split", "valid")
    assert code == 0
    assert json.loads(out)["loss"] > 0
    assert addnorm("info", run)[0] == 0
    (tmp_path / "in.txt").write_text("a red cat\n\nno\n")
    use = "generate" if task in ("language", "translation") else "classify"
    code, out, _ = addnorm(use, run, tmp_path / "in.txt")
    assert code == 0
    assert out.count("\n") == 3


def test_resume(tmp_path: Path, addnorm: Command) -> None:
    recipe, run = write_recipe(tmp_path, "language"), tmp_path / "r"
    assert addnorm("train", recipe, "--out", run, "--train.steps=2")[0] == 0
    code, _, err = addnorm("train", recipe, "--out", run)
    assert (code, "--resume" in err) == (2, True)
    code, _, err = addnorm("train", recipe, "--out", run, "--resume", "--model.d_model", "32")
    assert (code, "model.d_model is 16 there and 32 here" in err) == (2, True)
    code, _, err = addnorm("train", recipe, "--out", run, "--resume")
    assert (code, "nothing left to do" in err) == (0, False)
    for words in ((recipe, "--out", run), (run,)):
        code, _, err = addnorm("train", "--resume", *words)
        assert (code, f"{run}: training ended after step 4: nothing left to do" in err) == (0, True)
    steps = [json.loads(line)["step"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert sorted(set(steps)) == [1, 2, 3, 4]


@pytest.mark.long
def test_the_hint_after_ctrl_c_resumes_with_all_overrides(tmp_path: Path, addnorm: Command) -> None:
    """The command that an interrupted run prints, as it is, ends what was begun."""
    recipe, folder = write_recipe(tmp_path, "language"), tmp_path / "other"
    words = ["train", recipe, "--out", folder, "--train.lr", "3e-3", "--train.steps", "100000"]
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True)
    journal = folder / "metrics.jsonl"
    while not (journal.exists() and journal.stat().st_size):
        time.sleep(0.05)
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    step = len(journal.read_text().splitlines())
    hint = said.rpartition("resume with `")[2].partition("`")[0]
    assert shlex.split(hint) == ["addnorm", "train", "--resume", str(folder)]
    code, _, err = addnorm(*shlex.split(hint)[1:], "--train.steps", step + 2)
    assert code == 0, err
    assert "train.steps: 100000 so far" in err
    steps = [json.loads(line)["step"] for line in journal.read_text().splitlines()]
    assert max(steps) >= step + 2
    assert json.loads((folder / "config.json").read_text())["recipe"]["train"]["lr"] == 3e-3


@pytest.mark.long
def test_two_processes_in_one_folder(tmp_path: Path, addnorm: Command) -> None:
    """The second is refused by name, and the first ends as if it had been alone."""
    recipe, folder = write_recipe(tmp_path, "language"), tmp_path / "r"
    words = [*COMMAND, "train", str(recipe), "--out", str(folder), "--train.steps", "60"]
    first = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    lock = folder / ".lock"
    while not (lock.exists() and lock.read_text()):
        time.sleep(0.02)
        assert first.poll() is None
    code, _, err = addnorm("train", recipe, "--out", folder, "--train.steps", "60")
    _, said = first.communicate()
    assert (code, first.returncode) == (2, 0), said
    assert f"process {first.pid} on " in err
    steps = [
        json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert [*dict.fromkeys(steps)] == list(range(1, 61))
    assert not (folder / ".lock").exists()
    Run.open(folder)


def test_a_folder_that_is_not_a_run_is_rejected(tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "empty").mkdir()
    code, _, err = addnorm("train", "--resume", tmp_path / "empty")
    assert (code, "no run to resume" in err) == (2, True)
    code, _, err = addnorm("train", tmp_path / "empty")
    assert (code, "empty: a folder, where train needs a recipe, a TOML file\n" in err) == (2, True)
    (tmp_path / "empty/config.json").touch()
    code, _, err = addnorm("train", tmp_path / "empty")
    assert (code, "resume its run with `--resume" in err) == (2, True)


def test_the_dry_run_writes_nothing(
    tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, "translation")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    code, _, err = addnorm("train", recipe, "--dry-run")
    assert code == 0
    for expected in ("left out", "parameters", "target tokens", "time"):
        assert expected in err
    # The process of the tests may have taken more before.
    assert "together" in err or "while reading the data" in err
    assert sorted(tmp_path.iterdir()) == before


def test_the_dry_run_warns_of_too_little_memory(
    tmp_path: Path, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, "language")
    monkeypatch.setattr(cost, "total_memory", lambda: 2**20)
    code, _, err = addnorm("train", recipe, "--dry-run", "--train.device", "cpu")
    assert code == 0
    assert "warning: training takes about" in err
    assert "target tokens" not in err  # no step was made


def test_a_mistyped_optimiser_names_the_nearest(tmp_path: Path, addnorm: Command) -> None:
    recipe = write_recipe(tmp_path, "language")
    code, _, err = addnorm(
        "train", recipe, "--out", tmp_path / "run", "--train.optimizer.kind", "adamw_8bits"
    )
    assert (code, "Did you mean 'adamw_8bit'?" in err) == (2, True), err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("recipe", OURS, ids=lambda path: path.stem)
def test_our_recipes_on_slices(
    recipe: Path, shared_data: Path, tmp_path: Path, addnorm: Command
) -> None:
    """The real files, their first lines alone, and a tiny model for a few steps."""
    root = sliced(shared_data, recipe, tmp_path / "data")
    layers = 2 if "layer_pattern" in recipe.read_text() else 1
    words = [f"--data.root={root}", "--model.d_model=16", f"--model.n_layers={layers}"]
    words += ["--train.validate_every=2", "--train.save_every=2"]
    text = recipe.read_text()
    words += ["--model.attention.n_heads=2"] if "n_heads" in text else []
    words += ["--train.steps=3"] if "\nsteps" in text else ["--train.epochs=1"]
    if 'kind = "bpe"' in text:
        words += ["--tokenizer.vocab_size=300"]
    code, _, err = addnorm("train", recipe, "--out", tmp_path / "r", *words)
    assert code == 0, err
    code, out, err = addnorm("evaluate", tmp_path / "r")
    assert code == 0, err
    assert json.loads(out)["loss"] > 0


def sliced(data: Path, recipe: Path, root: Path) -> Path:
    """The files that a recipe names, cut after some lines, or sounds of one speaker."""
    for name in [part for part in recipe.read_text().split('"') if (data / part).is_file()]:
        opener = gzip.open if name.endswith(".gz") else open
        with opener(data / name, "rb") as file:
            whole = file.read()
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        with opener(root / name, "wb") as file:
            file.write(first_part(name, whole))
    for pattern in re.findall(r'"([^"\n]*\*[^"\n]*\.wav)"', recipe.read_text()):
        for file in data.glob(pattern):
            if "_jackson_" in file.name:
                (root / pattern).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, (root / pattern).parent)
    return root


def first_part(name: str, whole: bytes) -> bytes:
    """The first entries of a file; a series whole, whose splits are named by their rows."""
    match name.rpartition(".")[2]:
        case "npz":
            return first_images(whole)
        case "parquet":
            out = io.BytesIO()
            parquet.write_table(parquet.read_table(io.BytesIO(whole)).slice(0, 200), out)
            return out.getvalue()
        case _:
            return whole if name.startswith("ett") else first_lines(name, whole)


def first_lines(name: str, whole: bytes) -> bytes:
    lines = whole.split(b"\n")
    end = 200 if "ner" not in name else lines.index(b"", 600)
    return b"\n".join(lines[:end]) + b"\n"


def first_images(whole: bytes, n: int = 200) -> bytes:
    """An archive of the first `n` entries of each array."""
    cut = io.BytesIO()
    with np.load(io.BytesIO(whole), allow_pickle=False) as arrays:
        np.savez(cut, **{name: arrays[name][:n] for name in arrays.files})
    return cut.getvalue()
