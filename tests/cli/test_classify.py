"""`addnorm classify`: labels and tags, one line for each input line."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

RunOf = Callable[[str], Path]
Command = Callable[..., tuple[int, str, str]]


def test_a_label_for_each_line(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "in.txt").write_text("a fine day\n\nunheard of\n")
    code, out, _ = addnorm("classify", run_of("classification"), tmp_path / "in.txt")
    labels = out.splitlines()
    assert code == 0
    assert len(labels) == 3
    assert set(labels) <= {"good", "bad"}
    code, out, _ = addnorm("classify", run_of("classification"), tmp_path / "in.txt", "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["label"] for row in rows] == labels
    assert all(sum(row["probabilities"].values()) == pytest.approx(1) for row in rows)


def test_pairs_of_texts(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    """A run of ours reads them with its end between; a tab is needed, and one alone."""
    (tmp_path / "in.txt").write_text("a fine day\tunheard of\n\ta ball\n")
    code, out, _ = addnorm("classify", run_of("classification"), tmp_path / "in.txt", "--pairs")
    assert code == 0
    assert set(out.split()) <= {"good", "bad"}
    assert len(out.split()) == 2
    (tmp_path / "in.txt").write_text("one\ttwo\tthree\n")
    code, _, err = addnorm("classify", run_of("classification"), tmp_path / "in.txt", "--pairs")
    assert (code, ":1: 2 tabs" in err) == (2, True)
    (tmp_path / "in.txt").write_text("one\ttwo\n")
    code, _, err = addnorm("classify", run_of("tagging"), tmp_path / "in.txt", "--pairs")
    assert (code, "reads one sentence: give no pairs" in err) == (2, True)


def test_a_tag_for_each_word(
    run_of: RunOf, addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "Anna  lives\tin\u00a0Bonn \n\n \nx\n"
    for words in ([], ["-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        code, out, _ = addnorm("classify", run_of("tagging"), *words)
        assert code == 0
        assert [len(line.split()) for line in out.split("\n")[:-1]] == [3, 0, 0, 1]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    _, out, _ = addnorm("classify", run_of("tagging"), "--json")
    row = json.loads(out.splitlines()[0])
    assert row["tokens"] == ["Anna", "lives", "in\u00a0Bonn"]
    assert len(row["tags"]) == 3


def test_several_labels_and_numbers(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "in.txt").write_text("a fine day\na ball\n")
    run = run_of("multi_label")
    for threshold, expected in (("0", "joy,weather"), ("1", "")):
        options = [run, tmp_path / "in.txt", "--threshold", threshold]
        code, out, _ = addnorm("classify", *options)
        assert (code, out) == (0, f"{expected}\n" * 2)
        _, out, _ = addnorm("classify", *options, "--json")
        rows = [json.loads(line) for line in out.splitlines()]
        assert [row["labels"] for row in rows] == [expected.split(",") if expected else []] * 2
    code, _, err = addnorm("classify", run, tmp_path / "in.txt", "--threshold", "1.5")
    assert (code, "--threshold 1.5: must be at least 0 and at most 1" in err) == (2, True)
    code, out, _ = addnorm("classify", run_of("regression"), tmp_path / "in.txt")
    _, as_json, _ = addnorm("classify", run_of("regression"), tmp_path / "in.txt", "--json")
    found = [json.loads(line)["value"] for line in as_json.splitlines()]
    assert [float(line) for line in out.splitlines()] == pytest.approx(found, rel=1e-5)
    assert len(set(found)) == 2


def test_a_writer_is_refused(run_of: RunOf, tmp_path: Path, addnorm: Command) -> None:
    (tmp_path / "in.txt").write_text("x\n")
    for task in ("language", "translation"):
        code, _, err = addnorm("classify", run_of(task), tmp_path / "in.txt")
        assert (code, "use `addnorm generate`" in err) == (2, True)


def test_a_line_without_a_pair_is_left_out_alone(
    run_of: RunOf, tmp_path: Path, addnorm: Command
) -> None:
    (tmp_path / "in.txt").write_text("good day\tx\nwet\tcold\nno tab here\nok\tyes\n")
    words = ("classify", run_of("classification"), tmp_path / "in.txt", "--pairs")
    code, out, err = addnorm(*words)
    assert (code, len(out.splitlines())) == (2, 2)
    assert "in.txt:3: 0 tabs" in err
    code, out, err = addnorm(*words, "--errors", "skip")
    assert (code, len(out.splitlines())) == (0, 3)
    assert "in.txt:3: 0 tabs" in err
