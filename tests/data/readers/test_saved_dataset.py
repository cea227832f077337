"""Datasets that were saved to disk, as tables: classes by name, places, and damage."""

from pathlib import Path

import pytest

from addnorm.data import DatasetConfig, Labelled, TableConfig
from addnorm.data.readers.saved_dataset import is_saved, saved_rows
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
