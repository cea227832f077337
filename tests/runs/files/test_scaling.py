"""The scaling in a run folder: written and read exactly, or named as missing or damaged."""

from datetime import timedelta
from pathlib import Path

import pytest
from tests.runs.inference.test_forecast import write

from addnorm.data.scaling import Scaling
from addnorm.data.times import Interval
from addnorm.errors import InputError
from addnorm.runs.files.scaling import read_scaling, write_scaling
from addnorm.runs.recipes.recipe import read_recipe

INTERVALS = (None, Interval(months=3), Interval(fixed=timedelta(days=7, microseconds=1)))


@pytest.mark.parametrize("interval", INTERVALS, ids=str)
def test_it_is_read_as_it_was(interval: Interval | None, tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path))
    scaling = Scaling((0.1, -1e30), (1 / 3, 2.0), interval)
    write_scaling(tmp_path / "run", scaling)
    assert read_scaling(tmp_path / "run", recipe) == scaling
    write_scaling(tmp_path / "other", None)
    assert not (tmp_path / "other").exists()


def test_what_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    recipe = read_recipe(write(tmp_path))
    with pytest.raises(InputError, match=r"scaling.json: missing: the folder is damaged"):
        read_scaling(tmp_path, recipe)
    for text in ("{}", "[", '{"mean": [1], "deviation": ["x"]}'):
        (tmp_path / "scaling.json").write_text(text)
        with pytest.raises(InputError, match=r"scaling.json: damaged"):
            read_scaling(tmp_path, recipe)
