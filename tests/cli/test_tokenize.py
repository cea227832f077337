"""`addnorm tokenize`: shards from the command line, and its messages."""

from pathlib import Path

import pytest
from tests.data.shards.tiny import TEXTS, in_this_process, write_jsonl

from addnorm.cli.main import status
from addnorm.data.shards import writing


def test_texts_to_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(writing, "workers", in_this_process)
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "a.jsonl", [*TEXTS, *TEXTS[:9], ""])
    words = ["tokenize", "a.jsonl", "--out", "s", "--vocab-size", "300", "--dedup", "exact"]
    assert status([*words, "--valid-fraction", "0.2", "--workers", "2"]) == 0
    said = capfd.readouterr().err
    assert "210 read, 200 kept, 1 left out: empty, 9 left out: duplicate; " in said
    assert "; 37 kept in s/valid; 163 kept for training: " in said
    assert 'Next: data.kind = "shards", data.train = "s"' in said
    assert status(words) == 2
    assert "s/index.json: its shards differ in valid_fraction" in (capfd.readouterr().err)
    for wrong, message in (
        (["tokenize", "--out", "t"], "name files, folders or URLs"),
        (["tokenize", "aa.jsonl", "--out", "t", "--vocab-size", "300"], "Did you mean 'a.jsonl'"),
        (["tokenize", "a.jsonl", "--out", "t"], "give either --tokenizer"),
        (["tokenize", "a.jsonl", "--out", "t", "--vocab-size", "9"], "--vocab-size"),
        ([*words[:3], "t", "--vocab-size", "300", "--field", "body"], "a.jsonl:1: no column"),
    ):
        assert status(wrong) == 2
        assert message in capfd.readouterr().err
