"""A run saved in a new folder opens with the same weights; a folder in use is left alone."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from addnorm.errors import InputError
from addnorm.quantize import quantize_int8
from addnorm.runs.run import Run
from addnorm.runs.saving import save_run

RunOf = Callable[[str], Path]


def test_saved_and_opened(run_of: RunOf, tmp_path: Path) -> None:
    run = Run.open(run_of("language"))
    saved = run.save(tmp_path / "new")
    assert saved.folder == tmp_path / "new"
    opened = Run.open(tmp_path / "new")
    assert opened.recipe == run.recipe
    assert all(torch.equal(weight, run.weights[name]) for name, weight in opened.weights.items())


def test_a_folder_with_something_in_it(run_of: RunOf, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="is there already: save in a new folder"):
        save_run(Run.open(run_of("language")), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_model_quantised_behind_the_runs_back(run_of: RunOf, tmp_path: Path) -> None:
    """Its folder would not say so: refused."""
    run = Run.open(run_of("language"))
    quantize_int8(run.model)
    with pytest.raises(InputError, match="kept in fewer bits for use alone: save the run without"):
        save_run(run, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_folder_with_the_same_weights_of_another_type_is_not_this_run(
    run_of: RunOf, tmp_path: Path
) -> None:
    run = Run.open(run_of("language"), dtype="bfloat16")
    run.save(tmp_path / "new")
    run.save(tmp_path / "new")
    with pytest.raises(InputError, match="is there already: save in a new folder"):
        run.to(dtype="float32").save(tmp_path / "new")
