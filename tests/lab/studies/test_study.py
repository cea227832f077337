"""Studies: cells are recognised by what decides them, go on where they were, and end equal."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.lab.small import recipe_file, small_study
from tests.lab.studies.test_summary import figures
from tests.lab.test_executor import Here

from addnorm.atomic import atomic_write
from addnorm.errors import InputError
from addnorm.lab.executor import processes
from addnorm.lab.studies.cell import FIGURES, figures_file, write_figures
from addnorm.lab.studies.options import StudyOptions
from addnorm.lab.studies.study import read_settings, seeded, study_of
from addnorm.nn.choices import KernelChoices


def lines(folder: Path) -> list[dict]:
    """The results without the time that they took."""
    found = (folder / "results.jsonl").read_text("utf-8").splitlines()
    return [{k: v for k, v in json.loads(one).items() if k != "seconds"} for one in found]


@pytest.mark.long
def test_a_second_run_changes_and_reruns_nothing(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    study.run(Here, 1)
    found = lines(study.folder)
    assert [one["variant"] for one in found] == ["norm=layernorm", "norm=rmsnorm"] * 2
    assert [one["seed"] for one in found] == [1, 1, 2, 2]
    assert len({one["loss"] for one in found}) == 4
    times = {file: file.stat().st_mtime_ns for file in study.folder.glob("cells/*/*")}
    again = small_study(tmp_path)
    again.run(Here, 1)
    assert {file: file.stat().st_mtime_ns for file in study.folder.glob("cells/*/*")} == times
    assert lines(study.folder) == found
    assert not [*study.folder.glob("cells/*/checkpoints")]


class Nowhere:
    """An executor that must not be given any work."""

    def submit(self, fn: object, /, *args: object) -> Any:
        raise AssertionError("a process would start")


def test_a_finished_study_starts_no_process(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    for cell in study.cells:
        cell.folder.mkdir(parents=True)
        write_figures(cell.folder / FIGURES, figures(float(cell.seed)))
    results = study.run(Nowhere, 1)
    assert [[*results[i]] for i in results] == [[1, 2], [1, 2]]
    assert [line["loss"] for line in lines(study.folder)] == [1.0, 1.0, 2.0, 2.0]
    paused = small_study(tmp_path, steps=9)
    for cell in paused.cells:
        cell.folder.mkdir(parents=True)
        write_figures(figures_file(cell.folder, 4), figures(3.0, state="paused", steps=4))
    assert paused.run(Nowhere, 1, until=4)[1][2].state == "paused"
    with pytest.raises(AssertionError, match="a process would start"):
        paused.run(Nowhere, 1)


def test_cells_of_another_recipe_are_left_out_and_counted(tmp_path: Path) -> None:
    study, other = small_study(tmp_path), small_study(tmp_path, steps=9)
    for one in (study, other):
        for cell in one.cells:
            cell.folder.mkdir(parents=True)
            atomic_write(cell.folder / FIGURES, "{}")
    assert study.left_out() == sorted(cell.folder for cell in other.cells)
    study.write_settings()
    fewer_seeds = small_study(tmp_path, seeds=1, steps=9)
    assert len(fewer_seeds.left_out()) == len(study.cells) + len(other.cells) / 2


def test_kernels_are_those_for_the_threads_of_a_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured() -> KernelChoices:
        return KernelChoices(few_queries=torch.get_num_threads())

    monkeypatch.setattr("addnorm.nn.choices._of_machine", {})
    monkeypatch.setattr("addnorm.nn.choices._provider", measured)
    before = torch.get_num_threads()
    vary, options = {"model.norm": ["layernorm", "rmsnorm"]}, StudyOptions(threads=before + 1)
    study = study_of(recipe_file(tmp_path), tmp_path / "study", vary, options)
    assert study.settings.kernels.few_queries == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.long
def test_processes_and_order_change_no_bit(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "text.txt").write_text("", "utf-8")
    found = []
    for name, n in (("a", 1), ("b", 2)):
        study = small_study(tmp_path / name)
        cells = study.cells if n == 1 else study.cells[::-1]
        with processes(n) as make:
            study.run(make, n, cells=cells)
        found.append([{**one, "digest": ""} for one in lines(study.folder)])
        weights = [(cell.folder / "model.safetensors").read_bytes() for cell in study.cells]
        found.append(weights)
    assert found[0] == found[2]
    assert found[1] == found[3]


STUDY = """
import sys
from pathlib import Path
from tests.lab.small import small_study
from addnorm.lab.executor import processes
if __name__ == "__main__":
    study = small_study(Path(sys.argv[1]), seeds=2, steps=int(sys.argv[2]))
    with processes(2) as make:
        study.run(make, 2)
"""


WITH_TESTS = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}


def written(study: Path) -> int:
    """The bytes of all curves: they grow with every step."""
    return sum(file.stat().st_size for file in study.rglob("metrics.jsonl"))


def killed_in_training(command: list[str], study: Path, chance: random.Random) -> int:
    """Start a study, and kill it a moment after a step of a cell was made; its exit status."""
    process = subprocess.Popen(command, env=WITH_TESTS)
    least = written(study)  # a cell that goes on cuts its curve first
    while process.poll() is None and (now := written(study)) <= least:
        least = now
        time.sleep(0.01)
    time.sleep(chance.uniform(0, 0.3))
    process.kill()
    return process.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_ten_times_in_training_it_ends_equal(tmp_path: Path) -> None:
    for name in ("killed", "whole"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name}.py").write_text(STUDY)
    chance = random.Random(3)
    command = [sys.executable, str(tmp_path / "killed.py")]
    steps = "400"
    study = tmp_path / "killed" / "study"
    for _ in range(10):
        killed = killed_in_training([*command, str(study.parent), steps], study, chance)
        assert killed == -signal.SIGKILL  # it had not ended yet
    for name in ("killed", "whole"):
        subprocess.run([*command, str(tmp_path / name), steps], env=WITH_TESTS, check=True)
    killed, whole = (
        [{**one, "digest": ""} for one in lines(tmp_path / name / "study")]
        for name in ("killed", "whole")
    )
    assert killed == whole
    assert len(whole) == 4


def test_a_digest_is_of_all_that_decides(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    digests = [cell.digest for cell in study.cells]
    assert len({*digests}) == 4
    assert [cell.digest for cell in small_study(tmp_path).cells] == digests
    threads = replace(study.settings, threads=2)
    kernels = replace(study.settings, kernels=replace(study.settings.kernels, few_queries=3))
    text = tmp_path / "text.txt"
    for settings in (threads, kernels):
        other = replace(study, settings=settings)
        assert not {cell.digest for cell in other.cells} & {*digests}
    longer = small_study(tmp_path, steps=9)
    assert not {cell.digest for cell in longer.cells} & {*digests}
    small_study(tmp_path)
    text.write_text(text.read_text("utf-8") + "more\n", "utf-8")
    read = study_of(tmp_path / "small.toml", tmp_path / "other", study.settings.vary)
    assert not {cell.digest for cell in read.cells} & {*digests}


def test_wrong_designs(tmp_path: Path) -> None:
    file, out = recipe_file(tmp_path), tmp_path / "out"
    norms = {"model.norm": ["layernorm", "rmsnorm"]}
    with pytest.raises(InputError, match=r"`metric = blue`: .*Valid: loss"):
        study_of(file, out, norms, StudyOptions(metric="blue"))
    with pytest.raises(InputError, match="must be at least 1"):
        study_of(file, out, norms, StudyOptions(seeds=0))
    with pytest.raises(InputError, match="nothing is left to compare norm=layernorm with"):
        study_of(file, out, {"model.norm": ["layernorm", "rmsnrom"]})
    with pytest.raises(InputError, match="nothing is left to compare"):
        study_of(file, out, {"model.norm": ["layernorm"]})
    out.mkdir()
    (out / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match="no study, and not empty"):
        study_of(file, out, norms)
    (out / "study.json").write_text("{")
    with pytest.raises(InputError, match=r"study\.json"):
        read_settings(out)
    assert read_settings(tmp_path / "nowhere") is None


def test_a_seed_is_the_recipes_and_the_next(tmp_path: Path) -> None:
    study = small_study(tmp_path, seeds=3)
    assert study.settings.seeds == (1, 2, 3)
    assert [cell.seed for cell in study.cells] == [1, 1, 2, 2, 3, 3]
    first = study.variants[0].recipe
    assert first is not None
    assert seeded(first, 9).train.seed == 9


@pytest.mark.long
def test_a_cell_whose_numbers_overflow_is_counted(tmp_path: Path) -> None:
    vary = {"train.lr": ["0.01", "1e30"]}
    study = study_of(recipe_file(tmp_path), tmp_path / "study", vary, StudyOptions(seeds=1))
    found = study.run(Here, 1)
    assert found[0][1].state == "finished"
    assert found[1][1].state == "diverged"
    assert "not finite" in found[1][1].problem or "overflows" in found[1][1].problem
    assert lines(study.folder)[1]["state"] == "diverged"
    assert found[1][1].parameters == found[0][1].parameters > 0
    assert (study.cells[1].folder / FIGURES).is_file()


def test_another_grid_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    study.write_settings()
    widths = {"model.d_model": ["16", "32"]}
    with pytest.raises(InputError, match=r"a study of model\.norm is there: give another `out`"):
        study_of(recipe_file(tmp_path), study.folder, widths)
    more = {"model.norm": ["layernorm", "rmsnorm", "scalenorm"]}
    assert len(study_of(recipe_file(tmp_path), study.folder, more).variants) == 3


def test_a_study_killed_at_its_start_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever file comes first, the same command finds its study."""

    def killed(*_: object) -> None:
        raise SystemError

    study = small_study(tmp_path)
    for nth in range(3):
        left = [nth]

        def some(file: Path, text: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                killed()
            atomic_write(file, text)

        monkeypatch.setattr("addnorm.lab.studies.study.atomic_write", some)
        with pytest.raises(SystemError):
            study.write_settings()
        monkeypatch.undo()
        small_study(tmp_path).write_settings()
        shutil.rmtree(study.folder)
