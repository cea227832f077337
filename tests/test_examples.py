"""The parts in `examples/own_parts`: short, trained, decoded and checked, all from outside."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "examples" / "own_parts"
FIELDS = {
    "dynamic_tanh": "model.norm",
    "kerple": "model.position",
    "gated_output": "model.attention.output",
    "differential": "model.attention.core",
}
RECIPE = """
[data]
kind = "text"
train = "text.txt"
valid_fraction = 0.2

[tokenizer]
kind = "char"

[model]
kind = "decoder"
d_model = 16
n_layers = 2
attention = { n_heads = 2 }
residual = "pre"

[train]
steps = 3
batching = { kind = "windows", batch_size = 2, seq_len = 16 }
"""


def addnorm(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command, with the current folder's modules no more importable than anyone's."""
    return subprocess.run(
        [sys.executable, "-m", "addnorm", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_every_example_has_a_field() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == FIELDS.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_an_example_is_short_and_says_how_it_is_tried(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    assert text.count("\n") <= 60
    assert f"addnorm check --part {name}:" in text


@pytest.mark.parametrize("name", FIELDS)
def test_an_example_is_trained_and_decoded(name: str, tmp_path: Path) -> None:
    """In a recipe by its name; the run folder opens with its import, and says so without."""
    file = FOLDER / f"{name}.py"
    [part] = set(re.findall(rf"--part ({name}:\w+)", file.read_text("utf-8")))
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 40)
    (tmp_path / "my.toml").write_text(RECIPE)
    words = ["train", "my.toml", "--import", str(file), f"--{FIELDS[name]}", part]
    trained = addnorm(tmp_path, *words)
    assert trained.returncode == 0, trained.stderr
    write = ["generate", "runs/my", "--prompt", "To be", "--max-new-tokens", "5"]
    written = addnorm(tmp_path, *write, "--import", str(file))
    assert written.returncode == 0, written.stderr
    assert len(written.stdout) >= 5
    refused = addnorm(tmp_path, *write)
    assert refused.returncode == 2
    assert "--import" in refused.stderr
    assert name in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("name", FIELDS)
def test_an_example_passes_the_check(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    [(part, definition)] = set(re.findall(r"--part (\S+) --definition (\S+)", text))
    words = ["check", "--part", part, "--definition", definition, "--no-compile", "--sample", "6"]
    done = addnorm(FOLDER, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"[1-9]\d* combinations checked .* 0 failed", done.stdout), done.stdout
