"""A cell: what it answers survives a file, and a damaged file is no answer."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.lab.small import recipe_file, small_study

from addnorm.errors import InputError
from addnorm.lab import cell
from addnorm.lab.cell import FIGURES, FIGURES_OF, Figures, read_figures, run_cell, write_figures

SOME = Figures(
    state="finished",
    split="test",
    scores={"bleu": 12.5},
    steps=3,
    tokens=40,
    seconds=1.5,
    parameters=7,
    values={"loss": [1.0, 2.0]},
    texts=[("ein Haus", "das Haus")],
)


def test_figures_survive_a_file(tmp_path: Path) -> None:
    write_figures(tmp_path / FIGURES, SOME)
    assert read_figures(tmp_path / FIGURES) == SOME
    assert FIGURES_OF.validate_python(FIGURES_OF.dump_python(SOME, mode="json")) == SOME


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"state": "over"}'])
def test_a_damaged_file_is_no_answer(damage: str, tmp_path: Path) -> None:
    assert read_figures(tmp_path / FIGURES) is None
    (tmp_path / FIGURES).write_text(damage)
    assert read_figures(tmp_path / FIGURES) is None


@pytest.mark.long
def test_a_pause_is_measured_and_gone_on_from(tmp_path: Path) -> None:
    """Paused twice and gone on, it ends equal to the bit with one that never paused."""
    for name in ("paused", "whole"):
        (tmp_path / name).mkdir()
    paused = small_study(tmp_path / "paused", seeds=1)
    job = paused._job(paused.cells[0], 3)
    found = run_cell(job)
    assert (found.state, found.steps) == ("paused", 3)
    assert run_cell(job) == found
    assert not (paused.cells[0].folder / "model.safetensors").exists()
    later = run_cell(paused._job(paused.cells[0], 5))
    assert later.steps == 5
    assert run_cell(job) == found, "what it was at the first pause is kept"
    ended = run_cell(paused._job(paused.cells[0], None))
    whole = small_study(tmp_path / "whole", seeds=1)
    other = run_cell(whole._job(whole.cells[0], None))
    assert ended.scores == other.scores
    assert ended.values == other.values
    assert (ended.state, ended.steps, ended.tokens) == ("finished", 8, other.tokens)
    files = [one.cells[0].folder / "model.safetensors" for one in (paused, whole)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_figures_of_another_cell_are_not_believed(tmp_path: Path) -> None:
    found = Figures(state="finished", split="valid", scores={}, steps=1, tokens=1, seconds=1.0)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    write_figures(tmp_path / "one" / FIGURES, found)
    assert read_figures(tmp_path / "one" / FIGURES) == found
    (tmp_path / "other" / FIGURES).write_bytes((tmp_path / "one" / FIGURES).read_bytes())
    assert read_figures(tmp_path / "other" / FIGURES) is None


OWN = """
from dataclasses import dataclass

from torch import nn


class OwnNorm(nn.LayerNorm):
    def forward(self, x, valid=None):
        return super().forward(x)


@dataclass(frozen=True)
class OwnNormConfig:
    kind: str = "own_norm_of_cells:OwnNormConfig"

    def build(self, d_model: int) -> nn.Module:
        return OwnNorm(d_model)
"""


def test_a_worker_that_goes_on_imports_what_is_new_and_sees_what_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell, "_imported", {})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    before = torch.get_num_threads()
    file = tmp_path / "own_norm_of_cells.py"
    file.write_text(OWN)
    try:
        cell.prepare_process(1, ())
        cell.prepare_process(2, (str(file),))
        assert torch.get_num_threads() == 2
        assert "own_norm_of_cells" in sys.modules
        cell.prepare_process(1, (str(file),))
        file.write_text(OWN + "SCALE = 5\n")
        with pytest.raises(InputError, match="has changed since a worker"):
            cell.prepare_process(1, (str(file),))
    finally:
        torch.set_num_threads(before)
        sys.modules.pop("own_norm_of_cells", None)


@pytest.mark.long
def test_a_recipe_that_imports_its_parts_is_compared(tmp_path: Path) -> None:
    (tmp_path / "own_norm_of_cells.py").write_text(OWN)
    OWN_NORM = "own_norm_of_cells:OwnNormConfig"
    file = recipe_file(tmp_path)
    file.write_text('import = ["own_norm_of_cells.py"]\n' + file.read_text())
    command = [sys.executable, "-m", "addnorm", "ablate", str(file), "--seeds", "2"]
    command += ["--vary", f"model.norm=layernorm,{OWN_NORM}", "--out", str(tmp_path / "study")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "study" / "results.jsonl").read_text().splitlines()
    assert len(lines) == 4
