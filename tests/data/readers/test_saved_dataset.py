"""Saved datasets as tables: classes by name, places, and damage; class numbers in Parquet."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from addnorm.data import DatasetConfig, Labelled, TableConfig
from addnorm.data.readers.saved_dataset import is_saved, saved_rows
from addnorm.data.readers.tables import records_of
from addnorm.errors import InputError

datasets = pytest.importorskip("datasets")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Two splits, with classes by their numbers, and none in one row."""
    features = datasets.Features(
        {
            "a": datasets.Value("string"),
            "b": datasets.ClassLabel(names=["bad", "good"]),
        }
    )
    rows = [{"a": "x", "b": 1}, {"a": "y", "b": -1}, {"a": "z", "b": 0}]
    split = datasets.Dataset.from_list(rows, features=features)
    datasets.disable_progress_bars()
    datasets.DatasetDict({"train": split, "test": split}).save_to_disk(str(tmp_path / "saved"))
    return tmp_path / "saved"


def test_classes_have_their_names(saved: Path) -> None:
    assert is_saved(saved / "train")
    assert not is_saved(saved)
    assert [*saved_rows(saved / "train")][:2] == [
        (f"{saved / 'train'}, row 1", {"a": "x", "b": "good"}),
        (f"{saved / 'train'}, row 2", {"a": "y", "b": None}),
    ]
    corpus = TableConfig(root=saved, train=Path("train"), text="a", label="b").load()
    assert corpus.train == [Labelled("x", "good"), Labelled("z", "bad")]
    assert corpus.reports["train"].left_out == {"empty label": [f"{saved / 'train'}, row 2"]}


def test_a_split_without_rows_is_named(saved: Path, tmp_path: Path) -> None:
    none = datasets.load_from_disk(str(saved / "train")).select([])
    none.save_to_disk(str(tmp_path / "none"))
    with pytest.raises(InputError, match="none: a split there has no rows"):
        TableConfig(train=tmp_path / "none", text="a").load()
    with pytest.raises(InputError, match="none: a split there has no rows"):
        DatasetConfig(path=str(tmp_path / "none"), text="a", label="b").load()
    with pytest.raises(InputError, match=r"data\.name = 'small' chooses among .*: leave it out"):
        DatasetConfig(path=str(saved), name="small", text="a", label="b").load()
    (tmp_path / "none" / "state.json").write_text("[]")
    with pytest.raises(InputError, match=r"datasets cannot load .*none"):
        DatasetConfig(path=str(tmp_path / "none"), text="a", label="b").load()


def test_damage_is_named(saved: Path) -> None:
    for file in (saved / "train").glob("*.arrow"):
        file.unlink()
    with pytest.raises(InputError, match=r"datasets cannot load .*train"):
        TableConfig(train=saved / "train", text="a").load()
    with pytest.raises(InputError, match="saved is a folder, not a file"):
        TableConfig(train=saved, text="a").load()


datasets = pytest.importorskip("datasets")


def test_classes_have_their_names_however_deep(tmp_path: Path) -> None:
    """In a saved dataset, and in a Parquet file of the same package."""
    one = datasets.ClassLabel(names=["bad", "good"])
    features = {
        "list": datasets.List(one),
        "large": datasets.LargeList(one),
        "inner": {"label": one, "text": datasets.Value("string")},
        "rows": datasets.List({"label": one}),
        "columns": datasets.Sequence({"label": one}),
        "number": datasets.Value("int64"),
    }
    row = {
        "list": [1, -1],
        "large": [0],
        "inner": {"label": -1, "text": "x"},
        "rows": [{"label": 1}],
        "columns": {"label": [0, 1]},
        "number": 1,
    }
    empty = dict.fromkeys(row)
    expected = {
        "list": ["good", ""],
        "large": ["bad"],
        "inner": {"label": None, "text": "x"},
        "rows": [{"label": "good"}],
        "columns": {"label": ["bad", "good"]},
        "number": 1,
    }
    made = datasets.Dataset.from_list([row, empty], features=datasets.Features(features))
    datasets.disable_progress_bars()
    made.save_to_disk(str(tmp_path / "saved"))
    made.to_parquet(str(tmp_path / "a.parquet"))
    for table in (tmp_path / "saved", tmp_path / "a.parquet"):
        [(_, first), (_, second)] = records_of(table)
        assert first == expected
        assert second is not None
        assert not any(second[name] for name in ("list", "large", "rows", "number"))


def test_a_class_number_without_a_name_is_refused(tmp_path: Path) -> None:
    described = {"info": {"features": {"b": {"names": ["bad"], "_type": "ClassLabel"}}}}
    metadata = {"huggingface": json.dumps(described)}
    table = pyarrow.table({"a": ["x", "y"], "b": [0, 1]}).replace_schema_metadata(metadata)
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(
        InputError, match=r"a\.parquet, row 2: class number 1 has no name: there are 1"
    ):
        TableConfig(train=tmp_path / "a.parquet", text="a", label="b").load()
    odd = table.replace_schema_metadata({"huggingface": "[]"})
    parquet.write_table(odd, tmp_path / "a.parquet")
    corpus = TableConfig(train=tmp_path / "a.parquet", text="a", label="b").load()
    assert corpus.labels == ("0", "1")
