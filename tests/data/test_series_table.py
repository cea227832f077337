"""Tables of a series: CSV and Parquet hold the same, and every wrong one is named by its line."""

import math
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from addnorm.data.series_table import read_series
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
        r"s.csv:4: .* is of zone UTC\+01:00, and the first of UTC",
    ),
    "a gap": ([*GOOD[:2], GOOD[3]], "s.csv:4: 1 steps of 1:00:00 are missing before .*leave_out"),
    "an empty cell": ([GOOD[0], "2020-01-01 01:00,,20"], "s.csv:3: a is empty: .*leave_out"),
    "nan": ([GOOD[0], "2020-01-01 01:00,2,NaN"], "s.csv:3: b is empty"),
    "an infinite cell": ([GOOD[0], "2020-01-01 01:00,2,inf"], "s.csv:3: b = 'inf' is no number"),
    "a word": ([GOOD[0], "2020-01-01 01:00,two,2"], "s.csv:3: a = 'two' is no number: name the"),
    "no time": ([GOOD[0], "yesterday,2,2"], "s.csv:3: date = 'yesterday' is no time"),
    "no times": (["1,2,3", "4,5,6"], "s.csv:2: no column holds a time .* data.time_column"),
    "one row": (GOOD[:1], "1 rows are no series"),
    "an empty line": ([GOOD[0], "", GOOD[1]], "s.csv:3: an empty line"),
    "cells too few": ([GOOD[0], "2020-01-01 01:00,2"], "s.csv:3: 2 cells, but 3 columns"),
    "off the interval": ([*GOOD, "2020-01-01 03:30,2,2"], "s.csv:6: .* is not on the interval"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_table_is_named(case: str, tmp_path: Path) -> None:
    lines, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        read_series(write(tmp_path, *lines))


@pytest.mark.parametrize(
    ("time", "columns", "message"),
    [
        ("dat", (), "no column 'dat' among date, a, b. Did you mean 'date'"),
        (None, ("a", "c"), "no column 'c' among"),
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
