"""A cell: what it answers survives a file, and a damaged file is no answer."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.lab.small import recipe_file, small_study

from addnorm.data.examples import Captioned, Pair, Text
from addnorm.data.ids.forecast_windows import ForecastWindows
from addnorm.errors import InputError, Interrupted
from addnorm.lab.statistics import bootstrap_interval
from addnorm.lab.studies import cell
from addnorm.lab.studies.cell import (
    FIGURES,
    FIGURES_OF,
    TIMES,
    Figures,
    read_figures,
    run_cell,
    stretch_of,
    texts_of,
    training_times,
    values_of,
    write_figures,
)
from addnorm.runs.evaluation import Evaluation

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


def test_figures_round_trip(tmp_path: Path) -> None:
    write_figures(tmp_path / FIGURES, SOME)
    assert read_figures(tmp_path / FIGURES) == SOME
    assert FIGURES_OF.validate_python(FIGURES_OF.dump_python(SOME, mode="json")) == SOME


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"state": "over"}'])
def test_read_figures_ignores_damaged_files(damage: str, tmp_path: Path) -> None:
    assert read_figures(tmp_path / FIGURES) is None
    (tmp_path / FIGURES).write_text(damage)
    assert read_figures(tmp_path / FIGURES) is None


def test_read_figures_ignores_another_cell(tmp_path: Path) -> None:
    found = Figures(state="finished", split="valid", scores={}, steps=1, tokens=1, seconds=1.0)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    write_figures(tmp_path / "one" / FIGURES, found)
    assert read_figures(tmp_path / "one" / FIGURES) == found
    (tmp_path / "other" / FIGURES).write_bytes((tmp_path / "one" / FIGURES).read_bytes())
    assert read_figures(tmp_path / "other" / FIGURES) is None


def evaluation(predictions: dict[int, str], **values: dict[int, float]) -> Evaluation:
    return Evaluation({"loss": 1.0}, predictions, ((3.0, 2), (5.0, 2)), values=values)


def test_batches_have_their_losses_and_targets() -> None:
    assert values_of(evaluation({})) == {"loss": [3.0, 5.0], "targets": [2.0, 2.0]}


def test_values_have_the_numbers_of_their_examples() -> None:
    found = values_of(evaluation({}, accuracy={0: 100.0, 2: 0.0}))
    assert found["accuracy"] == [100.0, 0.0]
    assert found["examples"] == [0.0, 2.0]
    assert "windows" not in found


def test_stretches_of_windows_average_to_the_error() -> None:
    """Weighted by their windows, the last of which is shorter; also where there is but one."""
    errors = {i: float(i * i) for i in range(7)}
    for stretch in (2, 3, 7, 9):
        found = values_of(evaluation({}, mse=errors, mae=errors), stretch)
        assert sum(found["windows"]) == 7
        assert np.average(found["mse"], weights=found["windows"]) == pytest.approx(91 / 7)
        assert found["mae"] == found["mse"]
        assert len(found["examples"]) == len(found["windows"]) == -(-7 // stretch)
    assert values_of(evaluation({}, mse=errors), 3)["mse"] == [5 / 3, 50 / 3, 36.0]


def test_windows_of_a_series_are_stretches_and_texts_are_not() -> None:
    windows = ForecastWindows(torch.zeros(1, 40), np.arange(10, 30), look_back=10, horizon=6)
    assert stretch_of(windows) == 12
    assert stretch_of([]) == 1


@pytest.mark.long
def test_the_interval_over_stretches_holds_the_truth_that_over_windows_misses() -> None:
    """Windows that share twelve steps with each neighbour, of errors that are independent."""
    rng, horizon = np.random.default_rng(0), 12
    hits = {1: 0, 2 * horizon: 0}
    for seed in range(100):
        steps = rng.normal(size=600 + horizon - 1)
        windows = np.convolve(steps, np.ones(horizon) / horizon, "valid")
        for stretch in hits:
            values = values_of(evaluation({}, mse=dict(enumerate(windows.tolist()))), stretch)
            mine = np.array(values["mse"])
            weights = np.array(values.get("windows", [1.0] * len(mine)))
            zeros = np.zeros_like(mine)
            found = bootstrap_interval(mine, zeros, weights, resamples=300, seed=seed)
            hits[stretch] += found.low <= 0 <= found.high
    assert hits[1] < 50
    assert hits[2 * horizon] >= 83


def test_translations_have_their_references() -> None:
    found = texts_of(evaluation({0: "ein Haus"}), [Pair("a house", "das Haus")])
    assert found == [("ein Haus", "das Haus")]
    captioned = [Captioned(torch.zeros(1, 2, 2), "ein Haus")]
    assert texts_of(evaluation({0: "Haus"}), captioned) == [("Haus", "ein Haus")]
    assert texts_of(evaluation({}), [Text("a")]) == []


def test_damaged_times_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / TIMES
    assert training_times(tmp_path) == []
    for text, expected in (("[1,", []), ('["a"]', []), ("[1.5, 2]", [1.5, 2.0])):
        file.write_text(text)
        assert training_times(tmp_path) == expected


def test_a_failure_in_training_is_one_message_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_: object, **__: object) -> None:
        raise IndexError("an own part broke")

    study = small_study(tmp_path, seeds=1)
    monkeypatch.setattr(cell, "train_run", breaks)
    with pytest.raises(InputError, match=r"IndexError: an own part broke \(where .*train\.log"):
        cell.train_cell(study._job(study.cells[0], None))
    assert "in breaks" in (study.cells[0].folder / cell.LOG).read_text("utf-8")
    monkeypatch.setattr(cell, "train_run", stopped)
    with pytest.raises(Interrupted):
        cell.train_cell(study._job(study.cells[0], None))


def stopped(*_: object, **__: object) -> None:
    raise Interrupted(3)


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


def test_a_worker_imports_new_parts_and_rejects_changed_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cell, "_digests_of_imports", {})
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


@pytest.mark.slow
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
