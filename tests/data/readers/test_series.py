"""Series from tables: times, gaps and numbers; dates, rows and shares as borders of the splits."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pydantic import TypeAdapter, ValidationError

from addnorm.data import DataConfig, Series, SeriesConfig
from addnorm.data.readers.series import read_series
from addnorm.data.scaling import Scaling
from addnorm.data.times import Interval
from addnorm.errors import InputError

GOOD = ["2020-01-01 00:00,1,10", "2020-01-01 01:00,2,20", "2020-01-01 02:00,4,40",
        "2020-01-01 03:00,8,80"]  # fmt: skip


def write(folder: Path, *lines: str, header: str = "date,a,b") -> Path:
    (folder / "s.csv").write_text("\n".join([header, *lines]) + "\n")
    return folder / "s.csv"


def test_a_table_is_read(tmp_path: Path) -> None:
    table = read_series(write(tmp_path, *GOOD))
    assert table.names == ("a", "b")
    assert table.values.tolist() == [[1, 2, 4, 8], [10, 20, 40, 80]]
    assert table.time(5) == datetime(2020, 1, 1, 5)
    assert [place.rpartition(":")[2] for place in table.places] == ["2", "3", "4", "5"]
    assert read_series(write(tmp_path, *GOOD), columns=("b",)).values.tolist() == [[10, 20, 40, 80]]


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    times = [datetime(2020, 1, 1, hour, tzinfo=UTC) for hour in range(4)]
    columns = {"a": [1.0, 2.0, 4.0, 8.0], "when": times, "b": [10, 20, 40, 80]}
    parquet.write_table(pa.table(columns), tmp_path / "s.parquet")
    table = read_series(tmp_path / "s.parquet")
    assert table.names == ("a", "b")
    assert table.values.equal(read_series(write(tmp_path, *GOOD)).values)


def test_holes_are_left_out_where_they_may_be(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD[0], GOOD[1].replace(",2,", ",nan,"), GOOD[3], "2020-01-01 04:00,9,")
    table = read_series(file, missing="leave_out")
    assert table.values.isnan().nonzero().tolist() == [[0, 1], [0, 2], [1, 2], [1, 4]]
    assert table.rows == [0, 1, 3, 4]
    assert table.places[2] == f"{file}:4"  # the row after the gap


WRONG = {
    "unsorted": ([GOOD[1], GOOD[0], GOOD[2]], "s.csv:3: .* sort the table by time"),
    "a time twice": ([GOOD[0], GOOD[1], GOOD[1]], "s.csv:4: .* comes twice"),
    "two zones": (
        ["2020-01-01 00:00+00:00,1,2", "2020-01-01 01:00+00:00,1,2", "2020-01-01 03:00+01:00,1,2"],
        r"s.csv:4: .* is in zone UTC\+01:00, and the first in UTC",
    ),
    "a gap": ([*GOOD[:2], GOOD[3]], "s.csv:4: 1 steps of 1:00:00 are missing before .*leave_out"),
    "an empty cell": ([GOOD[0], "2020-01-01 01:00,,20"], "s.csv:3: a is empty: .*leave_out"),
    "nan": ([GOOD[0], "2020-01-01 01:00,2,NaN"], "s.csv:3: b is empty"),
    "an infinite cell": (
        [GOOD[0], "2020-01-01 01:00,2,inf"],
        "s.csv:3: b = 'inf' is not a number: leave the cell empty where",
    ),
    "too large": ([GOOD[0], "2020-01-01 01:00,2,1e39"], "s.csv:3: b = '1e39' is too large"),
    "a decimal comma": (
        [GOOD[0], '2020-01-01 01:00,2,"1,5"'],
        "s.csv:3: b = '1,5' .* a point instead",
    ),
    "a word": ([GOOD[0], "2020-01-01 01:00,two,2"], "s.csv:3: a = 'two' is not a number: name the"),
    "no time": ([GOOD[0], "yesterday,2,2"], "s.csv:3: date = 'yesterday' is not a time"),
    "no times": (["1,2,3", "4,5,6"], "s.csv:2: no column holds a time .* data.time_column"),
    "one row": (GOOD[:1], "a series needs at least two times, and there are 1"),
    "an empty line": ([GOOD[0], "", GOOD[1]], "s.csv:3: an empty line"),
    "cells too few": ([GOOD[0], "2020-01-01 01:00,2"], "s.csv:3: 2 cells, but 3 columns"),
    "off the interval": ([*GOOD, "2020-01-01 03:30,2,2"], "s.csv:6: .* is not on the interval"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_table_is_named(case: str, tmp_path: Path) -> None:
    lines, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        read_series(write(tmp_path, *lines))


HEADERS = {
    "date,a,a": "s.csv:1: two columns have the name 'a'",
    "2020-01-01,0,1": "s.csv:2: the names of the columns are 2020-01-01, 0, 1: the table has no",
    "date,,b": "s.csv:2: column 2 has no name, like the row numbers that pandas writes",
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_wrong_header_is_named(header: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=HEADERS[header]):
        read_series(write(tmp_path, *GOOD, header=header))


def test_other_marks_between_cells_are_named(tmp_path: Path) -> None:
    lines = [line.replace(",", ";") for line in GOOD]
    with pytest.raises(InputError, match=r"s.csv:1: ';' stands between the names 'date;a;b'"):
        read_series(write(tmp_path, *lines, header="date;a;b"))


def test_a_table_of_times_alone_has_no_variable(tmp_path: Path) -> None:
    lines = [line.split(",")[0] for line in GOOD]
    with pytest.raises(InputError, match=r"s.csv:2: no column is left for a variable: date"):
        read_series(write(tmp_path, *lines, header="date"))


ROWS = [{"t": f"2020-01-0{i}", "a": i, "b": -i} for i in range(1, 5)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": ...}, "s.jsonl:3: no column 'a'.*Valid: t, b"),
        ({"t": ...}, "s.jsonl:3: no column 't'.*Valid: a, b"),
        ({"c": 1}, "s.jsonl:3: a column 'c' that the first row lacks: name the columns"),
        ({"a": 10**400}, "s.jsonl:3: a = 1000.* is not a number"),
        ({"a": True}, "s.jsonl:3: a = True is not a number"),
        ({"a": [1]}, r"s.jsonl:3: a = \[1\] is not a number"),
    ],
)
def test_rows_of_other_keys_are_named(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    rows = [dict(row) for row in ROWS]
    rows[2] = {k: v for k, v in (rows[2] | change).items() if v is not ...}
    (tmp_path / "s.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(InputError, match=message):
        read_series(tmp_path / "s.jsonl")
    if "c" in change:
        assert read_series(tmp_path / "s.jsonl", columns=("a",)).values.tolist() == [[1, 2, 3, 4]]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parquet_of_every_unit_of_time(unit: str, tmp_path: Path) -> None:
    times = pa.array([datetime(2020, 1, 1, hour) for hour in range(4)], pa.timestamp(unit))
    tenths = pa.array([Decimal(n) / 10 for n in range(4)])
    parquet.write_table(pa.table({"when": times, "a": tenths}), tmp_path / "s.parquet")
    table = read_series(tmp_path / "s.parquet")
    assert (table.start, str(table.interval)) == (datetime(2020, 1, 1), "1:00:00")
    assert type(table.start) is datetime
    assert table.values.tolist() == [[0, 0.1, 0.2, 0.3]]


@pytest.mark.parametrize(
    ("time", "columns", "message"),
    [
        ("dat", (), "no column 'dat'. Did you mean 'date'"),
        (None, ("a", "c"), "no column 'c'."),
        (None, ("a", "a"), "each variable once"),
        (None, ("a", "date"), "each variable once, no times"),
    ],
)
def test_wrong_columns_are_named(
    time: str | None, columns: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        read_series(write(tmp_path, *GOOD), time, columns)


def test_words_for_nothing(tmp_path: Path) -> None:
    lines = [GOOD[0], *(f"2020-01-01 0{i}:00,{w},1" for i, w in enumerate(("", "NA", "null"), 1))]
    table = read_series(write(tmp_path, *lines), missing="leave_out")
    assert table.values[0, 1:].isnan().all()
    assert math.isnan(float(table.values[0, 1]))


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
        ({"test_from": "soon"}, "data.test_from = 'soon' is not a date"),
    ],
)
def test_borders_that_cannot_be(options: dict[str, Any], message: str, root: Path) -> None:
    with pytest.raises(InputError, match=message):
        parts(root, **options)


@pytest.mark.parametrize("moment", [-1, 1.5])
def test_impossible_borders_are_refused(moment: float, root: Path) -> None:
    with pytest.raises(ValidationError, match="valid_from"):
        parts(root, valid_from=moment)
