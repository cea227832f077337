"""A series split by time: dates, rows and shares, scaling by train alone, and borders refused."""

from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from addnorm.data import DataConfig, Series, SeriesConfig
from addnorm.data.scaling import Scaling
from addnorm.data.times import Interval
from addnorm.errors import InputError

START = datetime(2020, 1, 1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    rows = [f"{START + timedelta(hours=i)},{i % 24},{i * i}\n" for i in range(100)]
    (tmp_path / "s.csv").write_text("date,day,growth\n" + "".join(rows))
    return tmp_path


def parts(root: Path, **options: Any) -> dict[str, Series]:
    config = TypeAdapter[Any](DataConfig).validate_python(
        {"kind": "series", "root": str(root), "file": "s.csv", **options}
    )
    splits = config.load().splits
    return {name: one for name, [one] in splits.items() if isinstance(one, Series)}


SAME = [
    {"valid_from": 50, "test_from": 75, "until": 90},
    {"valid_from": 0.5, "test_from": 0.75, "until": 0.9},
    {"valid_from": "2020-01-03T02:00", "test_from": "2020-01-04 03:00", "until": "2020-01-04T18"},
    {"valid_from": datetime(2020, 1, 3, 2), "test_from": "2020-01-04 03:00:00", "until": 90},
]


@pytest.mark.parametrize("borders", SAME)
def test_rows_shares_and_dates_split_alike(borders: dict[str, Any], root: Path) -> None:
    found = parts(root, **borders)
    assert {name: (one.start, one.values.shape[1]) for name, one in found.items()} == {
        "train": (0, 50),
        "valid": (50, 75),
        "test": (75, 90),
    }
    assert all(one.names == ("day", "growth") for one in found.values())


def test_the_scaling_is_that_of_train(root: Path) -> None:
    found = parts(root, valid_from=30)
    hourly = Interval(fixed=timedelta(hours=1))
    expected = replace(Scaling.standard(found["train"].values), interval=hourly)
    assert {one.scaling for one in found.values()} == {expected}
    plain = replace(Scaling.none(2), interval=hourly)
    assert parts(root, scaling="none")["test"].scaling == plain
    assert found["test"].season == 24
    assert parts(root, season=5)["test"].season == 5


def test_a_part_may_be_left_out(root: Path) -> None:
    corpus = SeriesConfig(root=root, file=Path("s.csv"), valid_from=80, test_from=80).load()
    assert not corpus.valid
    assert corpus.labels == ("day", "growth")
    assert corpus.task == "forecasting"
    assert corpus.medium == "series"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valid_from": 60, "test_from": 50}, "valid_from = 60 is step 60, .* follow one another"),
        ({"valid_from": 0}, "must follow one another"),
        ({"until": 101}, "data.until = 101: .* has 100 rows"),
        ({"test_from": "2021-01-01"}, r"test_from = '?2021-01-01'?: .* goes from 2020-01-01"),
        ({"test_from": "soon"}, "data.test_from = 'soon' is no date"),
    ],
)
def test_borders_that_cannot_be(options: dict[str, Any], message: str, root: Path) -> None:
    with pytest.raises(InputError, match=message):
        parts(root, **options)


@pytest.mark.parametrize("moment", [-1, 1.5])
def test_numbers_that_are_no_place(moment: float, root: Path) -> None:
    with pytest.raises(ValidationError, match="valid_from"):
        parts(root, valid_from=moment)
