"""Data constructors: files give a configuration, lists give the equivalent corpus."""

from pathlib import Path
from typing import Any

import pytest

from addnorm.data import (
    ConllConfig,
    Corpus,
    Labelled,
    LinesConfig,
    Pair,
    ParallelConfig,
    TableConfig,
    Tagged,
    Text,
    TextConfig,
)
from addnorm.data.readers.constructors import labelled, pairs, table, tagged, text
from addnorm.errors import InputError


def test_paths_give_the_configurations_of_recipes() -> None:
    assert text("a.txt", valid_fraction=0.1, unit="line") == TextConfig(
        train=Path("a.txt"), valid_fraction=0.1, unit="line"
    )
    assert pairs(("a", "b"), test=("c", "d")) == ParallelConfig(
        train=(Path("a"), Path("b")), test=(Path("c"), Path("d"))
    )
    assert labelled(Path("a"), separator="\t", valid="b") == LinesConfig(
        train=Path("a"), separator="\t", valid=Path("b")
    )
    assert tagged("a.conll", lowercase=True) == ConllConfig(train=Path("a.conll"), lowercase=True)
    assert table("a.csv", text="review", label="stars", valid="b.csv") == TableConfig(
        train=Path("a.csv"), valid=Path("b.csv"), text="review", label="stars"
    )


def test_lists_give_what_files_would(tmp_path: Path) -> None:
    """The same examples, row by row, as from files with the same content."""
    (tmp_path / "lines.txt").write_text("To be,\nor not\n")
    given = text(["To be,", "or not"])
    assert given.train == text(tmp_path / "lines.txt", unit="line").load().train
    (tmp_path / "a").write_text("one\ntwo\n")
    (tmp_path / "b").write_text("Eins\nzwei\n")
    files = pairs((tmp_path / "a", tmp_path / "b"), lowercase=True).load()
    assert pairs([("one", "Eins"), ("two", "zwei")], lowercase=True).train == files.train
    (tmp_path / "c").write_text("good a fine day\nbad wet\n")
    assert labelled([("a fine day", "good"), ("wet", "bad")]).train == (
        labelled(tmp_path / "c").load().train
    )
    (tmp_path / "d").write_text("Anna B-PER\nsings O\n\nx O\n")
    both = [("Anna sings", "B-PER O"), (["x"], ["O"])]
    assert tagged(both).train == tagged(tmp_path / "d").load().train
    (tmp_path / "e.jsonl").write_text('{"s": "a b", "n": false}\n{"s": "c", "n": true}\n')
    rows = [{"s": "a b", "n": False}, {"s": "c", "n": True}]
    assert table(rows, text="s", label="n").train == (
        table(tmp_path / "e.jsonl", text="s", label="n").load().train
    )


def test_splits_of_lists() -> None:
    corpus = pairs([("a", "b")] * 8, valid=[("c", "d")], test=[("e", "f"), ("g", "h")])
    assert (len(corpus.train), list(corpus.valid), len(corpus.test)) == (8, [Pair("c", "d")], 2)
    held = text([f"line {n}" for n in range(10)], valid_fraction=0.3)
    assert (len(held.train), len(held.valid)) == (7, 3)
    assert {*held.train, *held.valid} == {Text(f"line {n}") for n in range(10)}
    assert table([{"t": "x"}], text="t", test=[{"t": "y"}]).test == [Text("y")]


def test_empty_rows_are_left_out_and_reported() -> None:
    corpus = labelled([("a", "x"), (" ", "x"), ("b", "")])
    assert corpus.train == [Labelled("a", "x")]
    assert dict(corpus.reports["train"].left_out) == {
        "empty text": ["train[1]"],
        "no label": ["train[2]"],
    }
    assert pairs([("a", "b"), ("", " ")]).reports["train"].left_out == {
        "empty source and target": ["train[1]"]
    }
    assert tagged([("a", "O"), ("", "")]).train == [Tagged(("a",), ("O",))]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: text("To be,\nor not to be"), r"give a text itself in a list, \[text\]"),
        (lambda: text(["a", 3]), r"train\[1\]: expected a string, not 3"),
        (lambda: text([]), "no usable row"),
        (lambda: text(["a"], unit="line"), "each string is a document"),
        (lambda: text(["a"], valid="b.txt"), "valid: expected a list"),
        (lambda: text("a.txt", valid=["b"]), "expected the path of a file"),
        (lambda: text(["a", "b"], valid_fracton=0.5), "Did you mean 'valid_fraction'"),
        (lambda: text("a.txt", valid_fracton=0.5), "Did you mean 'valid_fraction'"),
        (lambda: pairs([("a", "b", "c")]), r"train\[0\]: expected \(source, target\)"),
        (lambda: pairs(("a", "b"), valid="c"), "expected the paths of two files"),
        (lambda: labelled([("a", 1)]), r"train\[0\]: expected \(text, label\)"),
        (lambda: tagged([("a b", "O")]), r"train\[0\]: 2 words but 1 tags"),
        (lambda: table([{"t": "x"}], txet="t"), "Did you mean 'text'"),
        (lambda: table([{"t": "x"}], text="s"), "no column 's'"),
        (lambda: table([{"t": "x"}], text="t", source="t"), "one kind of example"),
        (lambda: table("a.csv", text="t", label_="x"), "Did you mean 'label'"),
    ],
)
def test_mistakes_are_named(make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()


def test_a_label_of_validation_that_training_lacks() -> None:
    with pytest.raises(InputError, match=r"valid\[0\]: the label 'c' never occurs"):
        labelled([("x", "a"), ("y", "b")], valid=[("z", "c")])


def test_a_corpus_is_of_one_task() -> None:
    assert isinstance(text(["a"]), Corpus)
    tasks = [
        text(["a"]).task,
        pairs([("a", "b")]).task,
        labelled([("a", "b")]).task,
        tagged([("a", "b")]).task,
    ]
    assert tasks == ["language", "translation", "classification", "tagging"]
