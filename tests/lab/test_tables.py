"""`addnorm.lab.study`: rows that other libraries take as they are."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.lab.small import recipe_file

from addnorm.errors import InputError
from addnorm.lab import StudyTable, study
from addnorm.lab.grid import reader_of, toml_value
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
        ({"model.norm": ["layernorm", "rmsnorm"]}, {"seeds": "3"}, "a whole number"),
        ({"model.norm": ["layernorm", "rmsnorm"]}, {"match": "params"}, "match"),
    ],
)
def test_what_python_gives_wrong_is_one_message(
    vary: Any, options: Any, said: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=said):
        study(recipe_file(tmp_path), vary=vary, folder=tmp_path / "study", **options)
    assert not (tmp_path / "study").exists()


def test_numbers_of_numpy_are_numbers() -> None:
    assert [toml_value(one) for one in np.array([16, 32])] == ["16", "32"]
    assert toml_value(np.array([0.5, 1.0])) == "[0.5, 1.0]"
