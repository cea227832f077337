"""Class numbers of Hugging Face's `datasets` by their names, in saved datasets and in Parquet."""

import json
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from addnorm.data import TableConfig
from addnorm.data.readers.tables import records_of
from addnorm.errors import InputError

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
    with pytest.raises(InputError, match=r"a\.parquet, row 2: class number 1, and names are there"):
        TableConfig(train=tmp_path / "a.parquet", text="a", label="b").load()
    odd = table.replace_schema_metadata({"huggingface": "[]"})
    parquet.write_table(odd, tmp_path / "a.parquet")
    corpus = TableConfig(train=tmp_path / "a.parquet", text="a", label="b").load()
    assert corpus.labels == ("0", "1")
