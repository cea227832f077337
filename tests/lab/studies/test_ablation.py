"""From a design to a report: budgets, cores, dry runs, and the files in the end."""

import io
import math
import os
import pkgutil
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from tests.lab.small import recipe_file, small_study
from tests.lab.studies.test_summary import figures, put

import addnorm.lab
from addnorm.errors import InputError
from addnorm.lab import StudyTable, study
from addnorm.lab.studies.ablation import (
    Cost,
    ablate_recipe,
    cell_rows,
    read_budget,
    variant_rows,
    within_budget,
)
from addnorm.lab.studies.options import StudyOptions
from addnorm.lab.studies.study import RESULTS
from addnorm.lab.studies.summary import summarise
from addnorm.lab.studies.variants import reader_of, toml_value
from addnorm.nn.norms import LayerNormConfig, RMSNormConfig

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
def test_read_budget_rejects(text: str) -> None:
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
    file = recipe_file(folder, steps=150)
    norms = ["--vary", "model.norm=layernorm,rmsnorm", "--seeds", "1"]
    sys.exit(status(["ablate", str(file), *norms, "--out", str(folder / "study")]))
"""


@pytest.mark.slow
def test_ctrl_c_saves_the_cells_and_the_same_command_resumes(tmp_path: Path) -> None:
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


@pytest.mark.long
def test_a_study_from_python(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    recipe = reader_of(recipe_file(tmp_path))({})
    norms = {"model.norm": [LayerNormConfig(), RMSNormConfig(eps=1e-5)], "train.lr": [0.01]}
    table = study(recipe, vary=norms, seeds=2, folder=tmp_path / "study", progress=False)
    assert isinstance(table, StudyTable)
    frame = pandas.DataFrame(table.cells)
    assert sorted(frame.groupby("variant").size()) == [2, 2]
    assert frame["loss"].notna().all()
    first, other = table.variants
    assert first["verdict"] is None
    assert other["verdict"] in ("higher", "lower", "undecided")
    means = frame.groupby("variant", sort=False)["loss"].mean()
    assert other["loss"] == pytest.approx(means.iloc[1])
    assert other["difference"] == pytest.approx(means.iloc[1] - means.iloc[0])
    assert math.isfinite(other["difference_low"])
    assert table.text.startswith("# Which norm and lr is best?")
    assert repr(table).startswith("<StudyTable of 2 variants, 4 cells")
    assert (table.folder / "report.html").is_file()


def test_study_raises_for_a_refused_variant(tmp_path: Path) -> None:
    file = recipe_file(tmp_path)
    with pytest.raises(InputError, match="rmsnorm"):
        study(file, vary={"model.norm": ["layernorm", "rmsnorm", "rmsnrom"]}, progress=False)
    with pytest.raises(InputError, match="seed"):
        study(file, vary={"model.norm": ["layernorm", "rmsnorm"]}, seed=3)  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("vary", "options", "said"),
    [
        ({"model.attention.n_kv_heads": [None, 1]}, {}, "None has no form"),
        ({"model.norm": "layernorm"}, {}, "is one value: give a list"),
        ({"model.norm": ["layernorm", "rmsnorm"]}, {"seeds": "3"}, "must be an integer"),
        ({"model.norm": ["layernorm", "rmsnorm"]}, {"match": "params"}, "match"),
        ({"model.norm": ["layernorm", "rmsnorm"]}, {"threads": "a"}, "threads = 'a'"),
        ({"model.norm": ["layernorm", "rmsnorm"]}, {"imports": "a.py"}, "a.py"),
        ({"model.norm": []}, {}, "model.norm has no values"),
        ({"train.lr": 1e-3}, {}, "0.001 is one value"),
        ({"train.lr": [1e-2, 1e-3, 0.001]}, {}, "train.lr: 0.001 is given twice"),
        ({"model.norm": [RMSNormConfig(), RMSNormConfig()]}, {}, "is given twice"),
        (["model.norm"], {}, "a dictionary of fields"),
    ],
)
def test_study_rejects_wrong_arguments(vary: Any, options: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        study(recipe_file(tmp_path), vary=vary, folder=tmp_path / "study", **options)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("recipe", [3, None, "nowhere.toml"])
def test_study_rejects_anything_but_a_recipe(recipe: Any) -> None:
    with pytest.raises(InputError, match=r"recipe = |nowhere.toml: no such recipe"):
        study(recipe, vary={"model.norm": ["layernorm", "rmsnorm"]})


def test_numbers_of_numpy_are_numbers() -> None:
    assert [toml_value(one) for one in np.array([16, 32])] == ["16", "32"]
    assert toml_value(np.array([0.5, 1.0])) == "[0.5, 1.0]"


def rows_of_all_kinds(tmp_path: Path, n_seeds: int) -> StudyTable:
    """A variant that was dropped, one that diverged with its last seed, and one that did not."""
    made = small_study(tmp_path, "layernorm", "rmsnorm", "scalenorm", seeds=n_seeds)
    broken = figures(None, state="diverged", problem="step 3: the loss is nan")
    kept = {(0, s): figures(2.0 + s / 10, scores=scores(2 + s / 10)) for s in range(1, n_seeds + 1)}
    kept |= {(1, s): figures(None, scores=scores(1 + s / 9)) for s in range(1, n_seeds)}
    put(made, kept | {(1, n_seeds): broken})
    made.write_results(made._ended())
    summary = summarise(made, {2: "loss +2 after 4 steps"})
    lines = (made.folder / RESULTS).read_text("utf-8").splitlines()
    return StudyTable(cell_rows(lines), variant_rows(summary), "", made.folder)


def scores(loss: float) -> dict[str, float]:
    return {"loss": loss, "perplexity": math.inf if loss > 2.1 else math.exp(loss)}


@pytest.mark.parametrize("n_seeds", [1, 2, 60])
def test_pandas_and_polars_take_rows_of_all_kinds(tmp_path: Path, n_seeds: int) -> None:
    """With names that only the last of 119 cells has, and numbers that JSON has not."""
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    table = rows_of_all_kinds(tmp_path, n_seeds)
    assert len({tuple(cell) for cell in table.cells}) == 1
    assert len({tuple(row) for row in table.variants}) == 1
    cells, variants = polars.DataFrame(table.cells), polars.DataFrame(table.variants)
    assert cells.height == 2 * n_seeds
    assert cells["loss"].null_count() == 1
    assert cells["problem"].to_list().count("step 3: the loss is nan") == 1
    assert cells.filter(polars.col("loss") > 2.15)["perplexity"].is_null().all()
    assert variants["dropped"].to_list() == ["", "", "loss +2 after 4 steps"]
    assert variants["diverged"].to_list() == [0, 1, 0]
    assert variants["missing"].to_list() == [0, 0, n_seeds]
    assert variants["loss"].to_list()[2] is None
    other, others = pandas.DataFrame(table.cells), pandas.DataFrame(table.variants)
    for name in ("loss", "perplexity", "seconds", "parameters"):
        ours = other[name].astype(float).tolist()
        theirs = [math.nan if x is None else float(x) for x in cells[name].to_list()]
        assert ours == pytest.approx(theirs, nan_ok=True)
    assert others["verdict"].isna().sum() == (3 if n_seeds == 1 else 2)
    means = other.groupby("variant", sort=False)["loss"].mean().tolist()
    assert means[0] == pytest.approx(others["loss"][0])
    grouped = cells.group_by("variant", maintain_order=True).agg(polars.col("loss").mean())
    assert grouped["loss"].to_list() == pytest.approx([means[0], *_none(means[1:])])


def _none(values: list[float]) -> list[float | None]:
    return [None if math.isnan(value) else value for value in values]


def test_matplotlib_draws_the_rows(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    rows = [row for row in rows_of_all_kinds(tmp_path, 3).variants if row["difference"] is not None]
    ax = Figure().subplots()
    means = [row["difference"] for row in rows]
    reach = [row["difference_high"] - row["difference"] for row in rows]
    drawn = ax.errorbar(means, range(len(rows)), xerr=reach)
    assert drawn.lines[0].get_xdata().tolist() == means


def test_no_module_hides_the_function() -> None:
    """A folder `lab/study` would, once something imports it."""
    for module in pkgutil.walk_packages(addnorm.lab.__path__, "addnorm.lab."):
        import_module(module.name)
    assert addnorm.lab.study is study
    assert addnorm.lab.StudyTable is StudyTable


@pytest.mark.parametrize(("name", "nearest"), [("seed", "seeds"), ("thread", "threads")])
def test_an_unknown_option_has_the_nearest_name(name: str, nearest: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"no argument {name}\..*Did you mean '{nearest}'"):
        study(recipe_file(tmp_path), vary={"model.norm": ["layernorm", "rmsnorm"]}, **{name: 1})
