"""`addnorm.lab.study`: rows that other libraries take as they are."""

import math
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.small import recipe_file, small_study
from tests.lab.studies.test_summary import figures, put

import addnorm.lab
from addnorm.errors import InputError
from addnorm.lab import StudyTable, study
from addnorm.lab.studies.study import RESULTS
from addnorm.lab.studies.summary import summarise
from addnorm.lab.studies.tables import cell_rows, variant_rows
from addnorm.lab.studies.variants import reader_of, toml_value
from addnorm.nn.norms import LayerNormConfig, RMSNormConfig


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


def test_what_is_refused_is_raised(tmp_path: Path) -> None:
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
        ({"train.lr": [1e-2, 1e-3, 0.001]}, {}, "train.lr: 0.001 is there twice"),
        ({"model.norm": [RMSNormConfig(), RMSNormConfig()]}, {}, "is there twice"),
        (["model.norm"], {}, "a dictionary of fields"),
    ],
)
def test_what_python_gives_wrong_is_one_message(
    vary: Any, options: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        study(recipe_file(tmp_path), vary=vary, folder=tmp_path / "study", **options)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("recipe", [3, None, "nowhere.toml"])
def test_what_is_no_recipe(recipe: Any) -> None:
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
