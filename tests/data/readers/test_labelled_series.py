"""Many series in a long table: classes, numbers, lengths, and each mistake by its line."""

import json
from pathlib import Path
from typing import Any

import pytest

from addnorm.data import LabelledSeries, LabelledSeriesConfig, ScoredSeries
from addnorm.errors import InputError

HEADER = "id,step,up,down,class"
ROWS = ["a,2020-01-01,1,-1,high", "a,2020-01-02,2,-2,high", "b,2020-01-01,5,-5,low",
        "c,2020-01-03,7,-7,low", "c,2020-01-05,8,-8,low", "c,2020-01-06,9,-9,low"]  # fmt: skip


def load(folder: Path, rows: list[str], header: str = HEADER, **options: Any) -> Any:
    (folder / "s.csv").write_text("\n".join([header, *rows]) + "\n")
    fields = {"label_column": "class", "time_column": "step", **options}
    return LabelledSeriesConfig(root=folder, train=Path("s.csv"), **fields).load()


def test_series_of_several_lengths(tmp_path: Path) -> None:
    corpus = load(tmp_path, ROWS)
    found = [one for one in corpus.train if isinstance(one, LabelledSeries)]
    assert [(one.label, one.values.tolist()) for one in found] == [
        ("high", [[1, 2], [-1, -2]]),
        ("low", [[5], [-5]]),
        ("low", [[7, 8, 9], [-7, -8, -9]]),
    ]
    assert corpus.labels == ("high", "low")
    assert (corpus.task, corpus.medium) == ("classification", "series")
    alone = load(tmp_path, ROWS, columns=("down",)).train[0]
    assert alone.values.tolist() == [[-1, -2]]


def test_numbers(tmp_path: Path) -> None:
    rows = [row.replace("high", "1.5").replace("low", "-2") for row in ROWS]
    corpus = load(tmp_path, rows, label_column=None, value_column="class")
    found = [one for one in corpus.train if isinstance(one, ScoredSeries)]
    assert [one.values for one in found] == [(1.5,), (-2.0,), (-2.0,)]
    assert (corpus.task, corpus.labels) == ("regression", ("value",))


def test_an_empty_cell_leaves_its_series_out(tmp_path: Path) -> None:
    corpus = load(tmp_path, [ROWS[0], "a,2020-01-02,,-2,high", *ROWS[2:]], missing="leave_out")
    report = corpus.reports["train"]
    assert (report.read, report.used) == (3, 2)
    assert report.left_out == {"an empty cell in the series": [f"{tmp_path / 's.csv'}:2"]}


WRONG: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "parted": ([ROWS[0], ROWS[2], ROWS[1]], {}, "s.csv:4: series 'a' continues after another"),
    "two classes": ([ROWS[0], ROWS[1].replace("high", "low")], {}, "s.csv:3: class = 'low', and"),
    "unsorted": ([ROWS[1], ROWS[0]], {}, "s.csv:3: .* sort the table by time"),
    "an empty cell": ([ROWS[0], "a,2020-01-02,,1,high"], {}, "s.csv:3: up is empty"),
    "a word": ([ROWS[0], "a,2020-01-02,one,1,high"], {}, "s.csv:3: up = 'one' is not a number"),
    "no id": (ROWS, {"id_column": "idd"}, "no column 'idd'. Did you mean 'id'"),
    "no class": (ROWS, {"label_column": "clas"}, "no column 'clas'"),
    "no name": (
        [ROWS[0], " ,2020-01-02,1,1,high"],
        {},
        "s.csv:3: id is empty: it names the series",
    ),
    "too large": ([ROWS[0], "a,2020-01-02,1e39,1,high"], {}, "s.csv:3: up = '1e39' is too large"),
    "an empty line": ([ROWS[0], "", ROWS[1]], {}, "s.csv:3: an empty line"),
    "no number": (ROWS, {"label_column": None, "value_column": "class"}, "s.csv:2: class = 'high'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_named(case: str, tmp_path: Path) -> None:
    rows, options, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        load(tmp_path, rows, **options)


def test_columns_of_other_tables_are_found_by_their_names(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("class,down,id,step,up,more\nhigh,-1,a,2020-01-01,1,9\n")
    test = load(tmp_path, ROWS, test=Path("t.csv")).test
    assert test[0].values.tolist() == [[1], [-1]]
    assert test[0].names == ("up", "down")
    (tmp_path / "t.csv").write_text("class,id,step,up\nhigh,a,2020-01-01,1\n")
    with pytest.raises(InputError, match=r"t.csv:2: no column 'down'.*Valid: class, id, step, up"):
        load(tmp_path, ROWS, test=Path("t.csv"))


@pytest.mark.parametrize("cell", ["null", "NaN", '" "'])
def test_a_series_without_a_class_is_counted(cell: str, tmp_path: Path) -> None:
    rows = [f'{{"id": 1, "a": 2.5, "class": {cell}}}', '{"id": 2, "a": 3, "class": "x"}']
    (tmp_path / "s.jsonl").write_text("\n".join(rows))
    fields = {"train": Path("s.jsonl"), "root": tmp_path, "label_column": "class"}
    report = LabelledSeriesConfig(**fields).load().reports["train"]  # pyright: ignore[reportArgumentType]
    assert (report.read, report.used) == (2, 1)
    assert report.left_out == {"empty class": [f"{tmp_path / 's.jsonl'}:1"]}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": 1, "class": "x"}, "s.jsonl:2: no column 'a'.*Valid: id, class"),
        ({"id": 1, "a": 2}, "s.jsonl:2: no column 'class'.*Valid: id, a"),
        ({"a": 1, "class": "x"}, "s.jsonl:2: no column 'id'.*Valid: a, class"),
        ({"id": 1, "a": 2, "b": 3, "class": "x"}, "s.jsonl:2: a column 'b' that the first"),
        ({"id": None, "a": 2, "class": "x"}, "s.jsonl:2: id is empty"),
    ],
)
def test_rows_of_other_keys_are_named(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    rows = [{"id": 1, "a": 2.5, "class": "x"}, row]
    (tmp_path / "s.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    with pytest.raises(InputError, match=message):
        LabelledSeriesConfig(root=tmp_path, train=Path("s.jsonl"), label_column="class").load()


def test_one_kind_of_answer() -> None:
    for columns in ({}, {"label_column": "a", "value_column": "b"}):
        with pytest.raises(ValueError, match="either label_column"):
            LabelledSeriesConfig(train=Path("s.csv"), **columns)  # type: ignore[arg-type]
