"""Records: examples of any kind from tables whose columns are their fields."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from addnorm.data import RecordsConfig, Tagged
from addnorm.data.example import Example
from addnorm.errors import InputError


@dataclass(frozen=True, slots=True)
class Rhyme(Example):
    """Two words, and how many sounds they share."""

    task = "rhyming"
    targets = ("shared",)

    word: str
    other: str
    shared: int = 0

    def source_text(self) -> str:
        return self.word

    def second_text(self) -> str:
        return self.other


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return path


def test_every_field_is_a_column_and_rows_without_a_target_are_counted(tmp_path: Path) -> None:
    file = write(
        tmp_path / "t.jsonl",
        {"word": "cat", "other": "hat", "shared": 2, "more": 1},
        {"word": "dog", "other": "cat"},
        {"word": "dog", "other": "fog", "shared": None},
        {"word": None, "other": "fog", "shared": 1},
    )
    corpus = RecordsConfig(example="Rhyme", train=file).load()
    assert list(corpus.train) == [Rhyme("cat", "hat", 2)]
    assert corpus.reports["train"].left_out == {
        "no shared": [f"{file}:2", f"{file}:3"],
        "empty word": [f"{file}:4"],
    }
    assert corpus.task == "rhyming"
    named = f"{__name__}:Rhyme"
    assert RecordsConfig(example=named, train=file).load().train == corpus.train


def test_columns_have_other_names_and_reach_into_nested_ones(tmp_path: Path) -> None:
    file = write(tmp_path / "t.jsonl", {"w": {"en": ["a", "b"]}, "tags": ["X", "Y"]})
    corpus = RecordsConfig(example="Tagged", columns={"tokens": "w.en"}, train=file).load()
    assert list(corpus.train) == [Tagged(("a", "b"), ("X", "Y"))]


def test_a_table_with_a_header_is_read_and_empty_lines_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "t.tsv"
    file.write_text("word\tother\tshared\ncat\that\t2\n\ndog\tfog\t2\n", encoding="utf-8")
    corpus = RecordsConfig(example="Rhyme", train=file).load()
    assert len(corpus.train) == 2
    assert corpus.reports["train"].left_out == {"empty line": [f"{file}:3"]}


@pytest.mark.parametrize(
    ("example", "columns", "row", "message"),
    [
        ("Rhym", {}, {}, r"data.example = 'Rhym'. Did you mean 'Rhyme'"),
        ("os:path", {}, {}, "data.example = 'os:path'"),
        ("Rhyme", {"wrod": "w"}, {}, r"data.columns.wrod: .* Did you mean 'word'"),
        ("Rhyme", {}, {"word": "cat"}, r"t.jsonl:1: other missing: give word, other, shared"),
        ("Rhyme", {}, {"word": 1, "other": "a"}, r"t.jsonl:1: word: expected text, not 1"),
        ("Rhyme", {"word": "w"}, {"other": "a"}, r"t.jsonl:1: no column 'w'"),
    ],
)
def test_refuses_with_the_place_and_the_nearest_name(
    tmp_path: Path, example: str, columns: dict[str, str], row: object, message: str
) -> None:
    file = write(tmp_path / "t.jsonl", row)
    with pytest.raises(InputError, match=message):
        RecordsConfig(example=example, columns=columns, train=file).load()
