"""The parts in `examples/own_parts`: short, trained, decoded and checked externally; notebooks."""

import json
import re
import shutil
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from tests.commands import run_all

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


def test_every_example_has_a_field() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == FIELDS.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_an_example_is_short_and_says_how_it_is_tried(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    assert text.count("\n") <= 60
    assert f"addnorm check --part {name}:" in text


@pytest.mark.sampled(4)
@pytest.mark.long
@pytest.mark.parametrize("name", FIELDS)
def test_an_example_is_trained_decoded_and_checked(name: str, tmp_path: Path) -> None:
    """In a recipe by its name; the run folder opens with its import, and says so without."""
    shutil.copy(FOLDER / f"{name}.py", tmp_path)
    text = (FOLDER / f"{name}.py").read_text("utf-8")
    [(part, definition)] = set(re.findall(r"--part (\S+) --definition (\S+)", text))
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 40)
    (tmp_path / "my.toml").write_text(RECIPE)
    write = ["generate", "runs/my", "--prompt", "To be", "--max-new-tokens", "5"]
    done = run_all(
        [
            ["train", "my.toml", "--import", f"{name}.py", f"--{FIELDS[name]}", part],
            [*write, "--import", f"{name}.py"],
            ["check", "--part", part, "--definition", definition, "--no-compile", "--sample", "2"],
        ],
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("To be") or len(done.stdout) > 5
    assert re.search(r"[1-9]\d* combinations checked .* 0 failed", done.stdout), done.stdout
    refused = run_all([write], tmp_path)
    assert refused.returncode == 2
    assert "--import" in refused.stderr
    assert name in refused.stderr
    assert "Traceback" not in refused.stderr


NOTEBOOKS = ROOT / "examples" / "notebooks"


def notebooks() -> ModuleType:
    """The script that runs the notebooks."""
    spec = spec_from_file_location("run_notebooks", NOTEBOOKS / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_notebooks_have_the_same_code_and_outputs_in_both_languages() -> None:
    run = notebooks()
    files = run.english()
    assert [file.stem for file in files] == ["fine_tune", "first_hour", "look_inside", "own_part"]
    for file in files:
        ours, theirs = (json.loads(f.read_text("utf-8")) for f in (file, run.in_chinese(file)))
        for one, other in zip(ours["cells"], theirs["cells"], strict=True):
            assert one["cell_type"] == other["cell_type"]
            assert (one["cell_type"] == "code") == (one == other), one
        code = [cell for cell in ours["cells"] if cell["cell_type"] == "code"]
        assert any(cell["outputs"] for cell in code)
        assert not [o for cell in code for o in cell["outputs"] if o["output_type"] == "error"]
        text = file.read_text("utf-8")
        assert not re.search(r"/(tmp|home|root|work|Users)/", text), file
        assert len(text) < 600_000


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["first_hour", "look_inside", "own_part", "fine_tune"])
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an error, within 90 s of two quiet cores; what is written is that of the file."""
    monkeypatch.setenv("ADDNORM_CACHE", str(tmp_path / "cache"))
    run = notebooks()
    file = NOTEBOOKS / f"{name}.ipynb"
    (tmp_path / "here").mkdir()
    again = run.executed(file, tmp_path / "here")
    kept = run.nbformat.read(file, 4)
    for ours, theirs in zip(run.code(again), run.code(kept), strict=True):
        kinds = [[output["output_type"] for output in cell.outputs] for cell in (ours, theirs)]
        assert kinds[0] == kinds[1], ours.source
