"""Lines from files and standard input."""

import io
import os
import sys
from pathlib import Path

import pytest

from addnorm.cli import lines
from addnorm.cli.lines import Lines, Reading, one_line
from addnorm.errors import InputError, TextError


def lines_from(files: list[Path], **reading: str) -> list[str]:
    groups = Lines(files, Reading(**reading)).groups()  # type: ignore[arg-type]
    return [line for _, group in groups for line in group]


def test_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("\ufeffone\r\ntwo\u2028\u0085\x0b\r\n\nla\rst".encode())
    (tmp_path / "b").write_bytes(b"")
    (tmp_path / "c").write_bytes(b"\n")
    read = lines_from([tmp_path / name for name in "abc"])
    assert read == ["one", "two\u2028\u0085\x0b", "", "la\rst", ""]


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("file\n")
    for files, expected in (([], ["in"]), ([tmp_path / "a", Path("-")], ["file", "in"])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"in\n")))
        assert lines_from(files) == expected


def test_groups_count_over_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    groups = list(Lines([tmp_path / "a"] * 2).groups(size=2))
    assert groups == [(0, ["1", "2"]), (2, ["3"]), (3, ["1", "2"]), (5, ["3"])]


def test_what_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"fine\n\xc3\n")
    for file, expected in (
        ("a", ":2: not UTF-8"),
        ("none", "No such file"),
        (".", "Is a directory"),
    ):
        with pytest.raises(InputError, match=expected):
            lines_from([tmp_path / file])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff")))
    with pytest.raises(InputError, match="standard input:1: not UTF-8"):
        lines_from([])


@pytest.mark.parametrize(
    ("content", "medium"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "a picture"),
        (b"BM\xf6\0\0\0\0\0\0\0\x36\0", "a picture"),
        (b"II*\0\xcc\0\0\0", "a picture"),
        (b"MM\0*\0\0\0\x08", "a picture"),
        (b"FORM\0\0\x06\x6eAIFFCOMM", "a sound"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF", "a picture"),
        (b"RIFF\x24\x08\0\0WAVEfmt ", "a sound"),
        (b"RIFF\x24\x08\0\0WEBPVP8 ", "a picture"),
        (b"OggS\0\2", "a sound"),
    ],
)
def test_a_picture_or_a_sound_given_as_text_is_named(
    content: bytes, medium: str, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(InputError, match=f"a: {medium}, and this model reads lines of text"):
        lines_from([tmp_path / "a"])


def test_text_that_begins_as_a_sound_does_is_text(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("RIFF is a form of files\nOggS\n")
    assert lines_from([tmp_path / "a"]) == ["RIFF is a form of files", "OggS"]


def test_a_line_holds_no_line_breaks() -> None:
    assert one_line("a\nb\r\nc\u2028") == "a\\nb\\r\\nc\u2028"


def upper(first: int, group: list[str]) -> list[str]:
    for number, line in enumerate(group, first + 1):
        if line == "long":
            raise TextError(f"line {number}: too long")
    return [line.upper() for line in group]


def test_what_was_answered_before_a_bad_line_is_not_lost(tmp_path: Path) -> None:
    for bad, message in ((b"\xff", ":4: not UTF-8"), (b"long", "line 4: too long")):
        (tmp_path / "a").write_bytes(b"a\nb\nc\n" + bad + b"\nd\n")
        answers = Lines([tmp_path / "a"]).answers(upper)
        assert [next(answers) for _ in range(3)] == [(1, "A"), (2, "B"), (3, "C")]
        with pytest.raises(InputError, match=message):
            next(answers)


def test_a_nul_is_not_text(tmp_path: Path) -> None:
    """A clip of silence is UTF-8 to the letter; training refuses it as well."""
    (tmp_path / "a.wav").write_bytes(b"RIFF\0\0WAVE\nb\n")
    with pytest.raises(
        InputError, match=r"a\.wav:1: a NUL: this is not text, or its encoding is not"
    ):
        lines_from([tmp_path / "a.wav"])
    assert lines_from([tmp_path / "a.wav"], errors="replace") == ["RIFF\ufffd\ufffdWAVE", "b"]


def test_bad_lines_are_skipped_and_counted_or_mended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").write_bytes(b"a\n\xff\nlong\nd\n")
    answers = Lines([tmp_path / "a"], Reading(errors="skip")).answers(upper)
    assert list(answers) == [(1, "A"), (4, "D")]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert said[0].endswith("a:2: not UTF-8 at byte 1: skipped")
    assert said[-1] == "addnorm: 2 lines skipped"
    assert lines_from([tmp_path / "a"], errors="replace") == ["a", "\ufffd", "long", "d"]


def test_a_line_without_an_end_is_refused_and_not_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LONGEST", 8)
    monkeypatch.setattr(lines, "CHUNK", 3)
    (tmp_path / "a").write_bytes(b"a\n12345678\n" + b"x" * 100 + b"\n\nd\n123456789")
    with (tmp_path / "a").open("rb", 0) as stream:
        assert max(len(line) for some in lines._whole_lines(stream) for line in some) <= 8 + 3
    assert lines_from([tmp_path / "a"], errors="skip") == ["a", "12345678", "", "d"]
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": a line of more than 8 bytes")[0][-2:] for line in said] == [
        ":3",
        ":6",
    ]
    with pytest.raises(InputError, match="a:3: a line of more than 8 bytes"):
        lines_from([tmp_path / "a"])


def test_another_encoding(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("März\n".encode("latin-1"))
    assert lines_from([tmp_path / "a"], encoding="latin-1") == ["März"]
    with pytest.raises(InputError, match="--encoding latin1x: unknown"):
        Reading(encoding="latin1x")
    for wide in ("utf-16", "utf-16-le", "utf-32", "cp037"):
        with pytest.raises(InputError, match=f"--encoding {wide}: its line ends are more"):
            Reading(encoding=wide)


def test_lines_are_answered_before_a_pause_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is there before the next is written."""
    end, begin = os.pipe()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(os.fdopen(end, "rb")))
    with os.fdopen(begin, "wb", buffering=0) as pipe:
        answers = Lines([]).answers(upper)
        for number in range(1, 4):
            pipe.write(b"a\n")
            assert next(answers) == (number, "A")
        pipe.write(b"b\nc\nunfinished")
        assert [next(answers), next(answers)] == [(4, "B"), (5, "C")]
    assert list(answers) == [(6, "UNFINISHED")]
    sys.stdin.close()


def test_a_text_that_cannot_be_answered_is_named_by_its_file_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = tmp_path / "one.txt", tmp_path / "two.txt"
    one.write_text("a\nb\n")
    two.write_text("c\nlong\nd\n")

    def answer(first: int, group: list[str]) -> list[str]:
        if "long" in group:
            raise TextError("too long")
        return group

    with pytest.raises(TextError, match=rf"^{two}:2: too long"):
        list(Lines([one, two]).answers(answer))
    found = [text for _, text in Lines([one, two], Reading(errors="skip")).answers(answer)]
    assert found == ["a", "b", "c", "d"]
    assert f"{two}:2: too long: skipped" in capsys.readouterr().err


def test_an_encoding_that_is_misspelt_has_a_nearest_name() -> None:
    with pytest.raises(InputError, match=r"--encoding latin1o: unknown\. Did you mean 'latin1'"):
        Reading(encoding="latin1o")


def test_of_no_line_at_all_what_cannot_be_answered_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(first: int, group: list[str]) -> list[str]:
        raise InputError("not a model for this")

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert [*Lines([]).answers(upper)] == []
    with pytest.raises(InputError, match="not a model for this"):
        list(Lines([]).answers(refuse))
