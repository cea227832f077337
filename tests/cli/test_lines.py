"""Lines from files and standard input."""

import io
import sys
from pathlib import Path

import pytest

from addnorm.cli.lines import groups_from, lines_from, one_line, words_of
from addnorm.errors import InputError


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeffone\r\ntwo\u2028\u0085\x0b\r\n\nla\rst".encode())
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "c").write_bytes(b"\n")
    lines = list(lines_from([tmp_path / name for name in "abc"]))
    assert lines == ["one", "two\u2028\u0085\x0b", "", "la\rst", ""]


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("file\n")
    for files, expected in (([], ["in"]), ([tmp_path / "a", Path("-")], ["file", "in"])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"in\n")))
        assert list(lines_from(files)) == expected


def test_groups_count_over_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    groups = list(groups_from([tmp_path / "a"] * 2, size=4))
    assert groups == [(0, ["1", "2", "3", "1"]), (4, ["2", "3"])]


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"fine\n\xc3\n")
    for file, expected in (
        ("a", ":2: not UTF-8"),
        ("none", "No such file"),
        (".", "Is a directory"),
    ):
        with pytest.raises(InputError, match=expected):
            list(lines_from([tmp_path / file]))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    with pytest.raises(InputError, match="standard input:1: not UTF-8"):
        list(lines_from([]))


def test_words_stand_between_spaces_and_tabs() -> None:
    assert words_of(" a  b\tc\u00a0d\u2028 ") == ["a", "b", "c\u00a0d\u2028"]
    assert words_of(" \t") == words_of("") == []


def test_a_line_holds_no_line_breaks() -> None:
    assert one_line("a\nb\r\nc\u2028") == "a\\nb\\r\\nc\u2028"
