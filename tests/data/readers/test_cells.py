"""Cells of tables: classes by their names and types, and what counts as a number."""

import json
import math
from collections.abc import Callable
from copy import copy
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import addnorm
from addnorm.data import Corpus
from addnorm.data.examples import (
    Image,
    Labelled,
    LabelledSeries,
    MultiLabelled,
    Scored,
    Tagged,
    Text,
)
from addnorm.data.readers.cells import LARGEST, class_in, is_missing, number_of
from addnorm.data.readers.hub import DatasetConfig
from addnorm.data.readers.images import ImageFilesConfig
from addnorm.data.readers.labelled_series import LabelledSeriesConfig
from addnorm.data.readers.tables import TableConfig
from addnorm.errors import InputError

Read = Callable[[Path, list[Any]], Corpus]


def rows_of(cells: list[Any]) -> list[dict[str, Any]]:
    return [{"text": f"text {n}", "label": cell} for n, cell in enumerate(cells)]


def jsonl(folder: Path, cells: list[Any]) -> Corpus:
    file = folder / "a.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows_of(cells)))
    return TableConfig(train=file, text="text", label="label").load()


def parquet(folder: Path, cells: list[Any]) -> Corpus:
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet as pq

    try:
        table = pa.Table.from_pylist(rows_of(cells))
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        pytest.skip("a column of Parquet has one type")
    pq.write_table(table, folder / "a.parquet")
    return TableConfig(train=folder / "a.parquet", text="text", label="label").load()


def dataset(folder: Path, cells: list[Any]) -> Corpus:
    datasets = pytest.importorskip("datasets")
    pa = pytest.importorskip("pyarrow")
    try:
        datasets.Dataset.from_list(rows_of(cells)).save_to_disk(folder / "saved")
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        pytest.skip("a column of a dataset has one type")
    return DatasetConfig(path=str(folder / "saved"), text="text", label="label").load()


def in_python(folder: Path, cells: list[Any]) -> Corpus:
    found = addnorm.table(rows_of(cells), text="text", label="label")
    assert isinstance(found, Corpus)
    return found


def several(folder: Path, cells: list[Any]) -> Corpus:
    rows = [{"text": "a", "labels": [] if cell is None else [cell]} for cell in cells]
    found = addnorm.table(rows, text="text", labels="labels")
    assert isinstance(found, Corpus)
    return found


def images(folder: Path, cells: list[Any]) -> Corpus:
    from PIL import Image as Picture

    for n in range(len(cells)):
        Picture.new("L", (2, 2), n).save(folder / f"{n}.png")
    rows = [{"file_name": f"{n}.png", "label": cell} for n, cell in enumerate(cells)]
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return ImageFilesConfig(root=folder, train="a.jsonl", image_size=(2, 2)).load()


def series(folder: Path, cells: list[Any]) -> Corpus:
    rows = [
        {"id": f"s{n}", "label": cell, "x": step}
        for n, cell in enumerate(cells)
        for step in range(2)
    ]
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return LabelledSeriesConfig(train=folder / "a.jsonl", label_column="label").load()


READERS: tuple[Read, ...] = (jsonl, parquet, dataset, in_python, several, images, series)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("cell", [["a"], {"a": 1}, [1, 2]], ids=["list", "object", "numbers"])
def test_lists_and_objects_are_refused(read: Read, cell: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a class, which is a text, a number or a truth"):
        read(tmp_path, [cell, cell])


@pytest.mark.parametrize("read", [one for one in READERS if one not in (parquet, dataset)])
@pytest.mark.parametrize("cells", [[1, 1.0], [True, 1], [1.0, False]], ids=str)
def test_one_column_has_one_type(read: Read, cells: list[Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="write the classes of a column in one type"):
        read(tmp_path, cells)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["b", "a"], ("a", "b")),
        ([2, 1, 1], ("1", "2")),
        ([2.5, 1.0], ("1.0", "2.5")),
        ([True, False], ("False", "True")),
        (["1", 2], ("1", "2")),
        (["1", 1], ("1",)),
    ],
)
def test_names_are_as_they_were(
    read: Read, cells: list[Any], names: tuple[str, ...], tmp_path: Path
) -> None:
    assert read(tmp_path, cells).labels == names


@pytest.mark.parametrize("read", [one for one in READERS if one is not several])
def test_a_missing_class_is_counted(read: Read, tmp_path: Path) -> None:
    corpus = read(tmp_path, ["a", None])
    assert corpus.labels == ("a",)
    [(reason, places)] = corpus.reports["train"].left_out.items()
    assert reason in ("empty label", "no label")
    assert len(places) == 1


def test_text_of_a_csv_file_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,1\nb,1.0\nc,true\nd,\n")
    corpus = TableConfig(train=tmp_path / "a.csv", text="text", label="label").load()
    assert corpus.labels == ("1", "1.0", "true")


def test_cells_of_numpy_and_others() -> None:
    assert class_in(np.int64(3), "") == "3"
    assert type(class_in(np.int64(3), "")) is type(class_in(3, ""))
    assert class_in(np.float32(0.5), "") == "0.5"
    assert class_in(Decimal("1.50"), "") == "1.50"
    assert all(map(is_missing, (None, float("nan"), " ")))
    assert not any(map(is_missing, (0, False, "0", 0.0)))
    with pytest.raises(InputError, match="surrogate"):
        class_in("\ud800", "here")
    with pytest.raises(InputError, match="here: expected a class"):
        class_in(b"a", "here")


PIXELS = torch.zeros(1, 2, 2, dtype=torch.uint8)


GOOD: tuple[Any, ...] = (
    Labelled("a", "x"),
    MultiLabelled("a", ("x",)),
    Text("a"),
    Tagged(("a",), ("x",)),
    Scored("a", (1.0,)),
    Image(PIXELS, "x"),
    LabelledSeries(torch.zeros(1, 2), "x"),
)


@pytest.mark.parametrize(
    ("n", "field", "value", "message"),
    [
        (0, "label", 1, "train example 2: label: expected text, not 1"),
        (0, "label", ["x"], r"expected text, not \['x'\]"),
        (0, "text", 3, "expected text, not 3"),
        (1, "labels", (1,), "expected text, not 1"),
        (2, "text", None, "expected text, not None"),
        (3, "tags", (1,), "expected text, not 1"),
        (3, "tokens", ("a", "b"), "2 words but 1 tags"),
        (4, "values", ("1",), "expected a number, not '1'"),
        (4, "values", (True,), "expected a number, not True"),
        (5, "label", 1, "expected text, not 1"),
        (6, "label", None, "expected text, not None"),
    ],
)
def test_examples_made_in_python(n: int, field: str, value: Any, message: str) -> None:
    broken = copy(GOOD[n])
    object.__setattr__(broken, field, value)  # as without the checks of types under pytest
    with pytest.raises(InputError, match=message):
        Corpus([GOOD[n], broken])


def test_ids_of_series(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    for ids, message in (([["a"]], "expected a class"), ([1, 1.0], "in one type")):
        rows = [{"id": one, "label": "x", "v": 1} for one in ids]
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        with pytest.raises(InputError, match=message):
            LabelledSeriesConfig(train=file, label_column="label").load()


def test_cells_of_numpy_are_read_as_those_of_python() -> None:
    """As rows of a data set in numpy's format hold them."""
    cells = [np.int64(2), np.int64(1), np.int64(2)]
    rows = [{"text": np.str_("a"), "label": cell} for cell in cells]
    assert addnorm.table(rows, text="text", label="label").labels == ("1", "2")
    lists = [{"text": "a", "labels": np.array(["b", "c"])}, {"text": "b", "labels": np.array([])}]
    read = addnorm.table(lists, text="text", labels="labels")
    assert read.labels == ("b", "c")
    assert len(read.train) == 2
    numbers = [{"text": "a", "score": np.array([1.5, 2.0])}, {"text": "b", "score": [0.5, 1]}]
    first = addnorm.table(numbers, text="text", values="score").train[0]
    assert isinstance(first, Scored)
    assert first.values == (1.5, 2.0)


@pytest.mark.parametrize(
    "nothing", [np.float32("nan"), Decimal("NaN"), np.datetime64("NaT"), float("nan"), None, " "]
)
def test_an_empty_cell_of_any_type_has_no_class(nothing: object) -> None:
    assert is_missing(nothing)
    rows = [{"text": "a", "label": nothing}, {"text": "b", "label": 1}]
    read = addnorm.table(rows, text="text", label="label")
    assert read.labels == ("1",)
    assert read.reports["train"].used == 1


def test_zero_is_one_class_and_a_decimal_number_no_other_number() -> None:
    zeros = [{"text": "a", "label": 0.0}, {"text": "b", "label": -0.0}]
    assert addnorm.table(zeros, text="text", label="label").labels == ("0.0",)
    mixed = [{"text": "a", "label": Decimal("1.0")}, {"text": "b", "label": 1}]
    with pytest.raises(InputError, match=r"1 is an integer, and 1\.0 at .* is a decimal number"):
        addnorm.table(mixed, text="text", label="label")


def test_an_invalid_class_is_refused_in_a_list_of_pairs() -> None:
    with pytest.raises(InputError, match=r"train\[1\]: this row: half a surrogate pair"):
        addnorm.labelled([("a", "b"), ("c", "\ud800")])


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("1.5", 1.5), (" -2e3 ", -2000.0), (3, 3.0), (Decimal("0.25"), 0.25), ("inf", math.inf),
        (10**400, math.inf), ("1_000", None), ("1,5", None), ("", None), ("two", None),
        (True, None), (None, None), ([1.0], None), ("\u0663", 3.0),
    ],
)  # fmt: skip
def test_only_numbers_are_numbers(cell: object, expected: float | None) -> None:
    assert number_of(cell) == expected


def test_the_largest_is_that_of_float32() -> None:
    assert torch.tensor([LARGEST, 1.001 * LARGEST]).isinf().tolist() == [False, True]
