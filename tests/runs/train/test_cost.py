"""Estimates: exact sizes, times measured as in training, nothing kept."""

import tempfile
from pathlib import Path

import pytest
from tests.runs.tiny import write_recipe

from addnorm.runs.recipes.recipe import read_recipe
from addnorm.runs.train.cost import estimate
from addnorm.runs.train.train_run import Prepared, count


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_is_counted(precision: str, tmp_path: Path) -> None:
    file = write_recipe(tmp_path, "language")
    overrides = {
        "train.accumulate": "3",
        "train.steps": "50",
        "train.precision": precision,
        "train.ema": "0.9",
        "train.device": "cpu",
    }
    prepared = Prepared(read_recipe(file, overrides))
    cost = estimate(prepared, n_timed=2)
    n = count(prepared.model)
    assert cost.parameters == n
    assert cost.steps == 50
    assert cost.steps_per_epoch == -(-len(prepared.loaders.train) // 3)
    assert 3 * 4 * 16 - 2 <= cost.tokens_per_step <= 3 * 4 * 16  # bos is no target
    # Weights, gradients, average, two moments of AdamW and its step counters, 4 bytes each.
    counters = 4 * len(list(prepared.model.parameters()))
    assert cost.state_bytes == 5 * 4 * n + counters
    assert cost.seconds == pytest.approx(50 * cost.seconds_per_step)
    assert cost.seconds_per_step > 0
    assert cost.peak_bytes is None or cost.peak_bytes > 2**20


def test_epochs_give_the_steps(tmp_path: Path) -> None:
    prepared = Prepared(read_recipe(write_recipe(tmp_path, "classification")))
    cost = estimate(prepared, n_timed=1)
    assert cost.steps == 2 * cost.steps_per_epoch


def test_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_recipe(tmp_path, "classification")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = sorted(tmp_path.rglob("*"))
    estimate(Prepared(read_recipe(file)), n_timed=1)
    assert sorted(tmp_path.rglob("*")) == before
