"""Reading files: missing, empty, wrongly encoded, truncated, with unusual line ends."""

import gzip
from pathlib import Path

import pytest

from addnorm.data.readers.plain_text import LinesConfig, TextConfig
from addnorm.data.readers.text_files import find, lines_of, read_text
from addnorm.errors import InputError


def written(folder: Path, data: bytes, name: str = "text.txt") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def test_lines_end_at_line_feeds_only(tmp_path: Path) -> None:
    data = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh\r\ni\r\n\nj".encode()
    text = read_text(written(tmp_path, data))
    assert lines_of(text) == ["a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg\rh", "i", "", "j"]


@pytest.mark.parametrize(("text", "lines"), [("a\n", ["a"]), ("a", ["a"]), ("\n\n", ["", ""])])
def test_the_last_line_feed_ends_a_line(text: str, lines: list[str]) -> None:
    assert lines_of(text) == lines


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    assert read_text(written(tmp_path, b"\xef\xbb\xbfa\xef\xbb\xbf")) == "a\ufeff"


def test_bad_bytes_are_named_with_their_line_and_a_way_out(tmp_path: Path) -> None:
    path = written(tmp_path, "ä\nb\u2028\n".encode() + b"caf\xe9\n")
    with pytest.raises(InputError, match=r'text\.txt:3: byte 0xe9 is not utf-8.*"latin-1"'):
        read_text(path)
    assert read_text(path, "latin-1").endswith("café\n")


def test_a_nul_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"text\.txt:2: a NUL"):
        read_text(written(tmp_path, b"a\nb\0c\n"))


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_an_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(InputError, match="is empty"):
        read_text(written(tmp_path, data))


@pytest.mark.parametrize("encoding", ["utf-88", "rot13", "undefined"])
def test_an_unknown_encoding_is_an_error(tmp_path: Path, encoding: str) -> None:
    with pytest.raises(InputError, match=encoding):
        read_text(written(tmp_path, b"a"), encoding)


def test_gz_is_unpacked(tmp_path: Path) -> None:
    assert read_text(written(tmp_path, gzip.compress(b"a\nb\n"), "text.gz")) == "a\nb\n"


@pytest.mark.parametrize("keep", [3, 12, 30, -9, -1])
def test_a_truncated_gz_is_an_error(tmp_path: Path, keep: int) -> None:
    data = gzip.compress(bytes(range(1, 100)))[:keep]
    with pytest.raises(InputError, match=r"text\.gz is a damaged or truncated gzip"):
        read_text(written(tmp_path, data, "text.gz"))


@pytest.mark.parametrize("at", [0, 15, -6])
def test_a_corrupt_gz_is_an_error(tmp_path: Path, at: int) -> None:
    data = bytearray(gzip.compress(b"abc" * 100))
    data[at] ^= 0xFF
    with pytest.raises(InputError, match="damaged or truncated gzip"):
        read_text(written(tmp_path, bytes(data), "text.gz"))


def test_a_missing_file_names_its_neighbour(tmp_path: Path) -> None:
    written(tmp_path, b"a", "train.en.gz")
    with pytest.raises(InputError, match=r"Did you mean 'train\.en\.gz'"):
        find(Path("train.en"), tmp_path)
    with pytest.raises(InputError, match="nor does its folder"):
        find(Path("nowhere/train.en"), tmp_path)
    with pytest.raises(InputError, match="is a folder"):
        find(Path(), tmp_path)


def test_paths_start_at_root_then_the_environment_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("root", "env", "here"):
        (tmp_path / name).mkdir()
        written(tmp_path / name, b"a")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("ADDNORM_DATA", raising=False)
    assert find(Path("text.txt")).resolve().parent.name == "here"
    monkeypatch.setenv("ADDNORM_DATA", str(tmp_path / "env"))
    assert find(Path("text.txt")).parent.name == "env"
    assert find(Path("text.txt"), tmp_path / "root").parent.name == "root"
    assert find(tmp_path / "here/text.txt", tmp_path / "root").parent.name == "here"


def test_a_line_of_ten_megabytes_is_a_line(tmp_path: Path) -> None:
    long = b"x" * 10_000_000
    assert [
        len(line) for line in lines_of(read_text(written(tmp_path, b"a\n" + long + b"\nb")))
    ] == [
        1,
        10_000_000,
        1,
    ]


def test_lines_that_end_with_carriage_returns_are_refused(tmp_path: Path) -> None:
    file = written(tmp_path, b"good one\r" * 9 + b"bad\n", "mac.txt")
    with pytest.raises(InputError, match=r"mac.txt: its lines end with .r, and lines end"):
        list(LinesConfig(train=file).load().train)
    with pytest.raises(InputError, match="its lines end with"):
        TextConfig(train=file, unit="line").load()
    assert len(TextConfig(train=file).load().train) == 1, "one document, whatever is in it"
