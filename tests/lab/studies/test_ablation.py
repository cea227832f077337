"""From a design to a report: budgets, cores, dry runs, and the files in the end."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console
from tests.lab.small import recipe_file, small_study

from addnorm.errors import InputError
from addnorm.lab.studies.ablation import (
    Cost,
    ablate_recipe,
    read_budget,
    within_budget,
)
from addnorm.lab.studies.options import StudyOptions

NORMS = {"model.norm": ["layernorm", "rmsnorm"]}


def console() -> Console:
    return Console(file=io.StringIO(), width=120)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("2h", 7200), ("1.5d", 129600)],
)
def test_budgets(text: str, seconds: float) -> None:
    assert read_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "-2h", "0m", "2 weeks", "1e3s"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(InputError, match="30m or 2h"):
        read_budget(text)


def test_as_many_seeds_as_fit(tmp_path: Path) -> None:
    study, told = small_study(tmp_path, seeds=5), console()
    costs = {i: Cost(parameters=1, flops=1.0, seconds=30.0) for i in (0, 1)}
    found = within_budget(study, costs, "2m", 1, told)
    assert len(found.settings.seeds) == 2
    assert "budget: 2 of 5 seeds fit into 2m" in told.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert len(within_budget(study, costs, "2m", 2, told).settings.seeds) == 4
    assert within_budget(study, costs, None, 1, told) is study
    assert within_budget(study, costs, "1h", 1, told).settings.seeds == study.settings.seeds
    with pytest.raises(InputError, match=r"one seed of all variants takes about 60 seconds"):
        within_budget(study, costs, "30s", 1, told)


def test_the_same_budget_again_keeps_the_seeds(tmp_path: Path) -> None:
    study, told = small_study(tmp_path, seeds=10), console()
    costs = {i: Cost(parameters=1, flops=1.0, seconds=30.0) for i in range(2)}
    first = within_budget(study, costs, "4m", 1, told)
    assert len(first.settings.seeds) == 4
    first.write_settings()
    study.cells[0].folder.mkdir(parents=True)
    slower = {i: Cost(parameters=1, flops=1.0, seconds=60.0) for i in range(2)}
    again = within_budget(study, slower, "4m", 1, told)
    assert again.settings.seeds == first.settings.seeds
    more = within_budget(study, costs, "6m", 1, told)
    assert len(more.settings.seeds) == 6
    wider = small_study(tmp_path, "layernorm", "rmsnorm", "none", seeds=10)
    other = small_study(tmp_path, seeds=10, steps=16)
    for one in (wider, other):
        assert len(within_budget(one, slower, "4m", 1, told).settings.seeds) == 2


@pytest.mark.long
def test_a_dry_run_trains_nothing(tmp_path: Path) -> None:
    told, folder = console(), tmp_path / "study"
    vary = {"model.norm": ["layernorm", "rmsnorm", "rmsnrom"]}
    options = StudyOptions(match="flops")
    found = ablate_recipe(recipe_file(tmp_path), folder, vary, options, told, dry_run=True)
    assert found == []
    assert not folder.exists()
    text = told.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert "refused: norm=rmsnrom" in text
    assert "FLOP per token" in text
    assert "3 seeds each" in text


@pytest.mark.long
def test_from_a_recipe_to_a_report(tmp_path: Path) -> None:
    folder, told = tmp_path / "study", console()
    options = StudyOptions(seeds=2)
    written = ablate_recipe(recipe_file(tmp_path), folder, NORMS, options, told)
    assert all(file.is_file() for file in written)
    assert len((folder / "results.jsonl").read_text().splitlines()) == 2 * 2
    assert "norm=rmsnorm" in (folder / "report.md").read_text("utf-8")


STOPPED = """
import sys
from pathlib import Path
from tests.lab.small import recipe_file
from addnorm.cli.main import status
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    file = recipe_file(folder, steps=400)
    norms = ["--vary", "model.norm=layernorm,rmsnorm", "--seeds", "1"]
    sys.exit(status(["ablate", str(file), *norms, "--out", str(folder / "study")]))
"""


@pytest.mark.long
def test_ctrl_c_saves_the_cells_and_the_same_command_goes_on(tmp_path: Path) -> None:
    """As in a terminal, where all processes of a command are interrupted at once."""
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    command = [sys.executable, str(script), str(tmp_path)]
    here = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{here / 'src'}"}
    study = tmp_path / "study"
    process = subprocess.Popen(
        command, cwd=here, env=environment, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 240
    while not [*study.glob("cells/*/metrics.jsonl")] and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "the same command resumes" in err
    assert "Traceback" not in err
    saved = [*study.glob("cells/*/checkpoints/*")]
    assert saved
    assert not (study / "report.md").exists()
    done = subprocess.run(
        command, cwd=here, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (study / "report.md").is_file()
    assert len((study / "results.jsonl").read_text("utf-8").splitlines()) == 2
