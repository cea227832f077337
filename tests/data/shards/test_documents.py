"""Documents of files: every kind, packed or not, from any number on; errors with file and line."""

import gzip
import json
import os
from pathlib import Path

import pyarrow
import pytest
import zstandard
from pyarrow import parquet

from addnorm.data.readers.text_files import TextConfig
from addnorm.data.shards.documents import documents, files_of
from addnorm.data.shards.options import Unit
from addnorm.errors import InputError

TEXT = "\ufeffone\r\ntwo\u2028and\n\n\nthree\nfour\r\n\nfünf"
ROWS = [{"text": "one", "n": 1}, {"text": None}, {"text": "fünf\n\n"}, {"text": ""}]


def read(file: Path | str, unit: Unit = "file", start: int = 0) -> list[tuple[str, str]]:
    return list(documents(str(file), field="text", unit=unit, start=start))


def packed(file: Path, suffix: str) -> Path:
    """A packed copy of a file; with zstandard in two frames."""
    content, other = file.read_bytes(), file.with_name(file.name + suffix)
    half = len(content) // 2
    pack = gzip.compress if suffix == ".gz" else zstandard.ZstdCompressor().compress
    other.write_bytes(pack(content[:half]) + pack(content[half:]))
    return other


@pytest.mark.parametrize("unit", ["file", "line", "paragraph"])
def test_a_text_has_the_documents_of_text_data(tmp_path: Path, unit: Unit) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(TEXT.encode())
    corpus = TextConfig(train=file, unit=unit).load()
    texts = [text for _, text in read(file, unit) if text.strip()]
    assert texts == [example.source_text() for example in corpus.train]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("unit", ["file", "line", "paragraph"])
def test_a_packed_file_has_the_same_documents(tmp_path: Path, suffix: str, unit: Unit) -> None:
    file = tmp_path / "a.txt"
    file.write_bytes(TEXT.encode() * 500)
    plain = read(file, unit)
    other = read(packed(file, suffix), unit)
    assert [text for _, text in other] == [text for _, text in plain]
    assert [where.replace(suffix, "") for where, _ in other] == [where for where, _ in plain]


def tables(folder: Path) -> list[Path]:
    """The same rows in every kind of table."""
    lines = folder / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    table = folder / "a.parquet"
    parquet.write_table(pyarrow.table({"text": [row["text"] for row in ROWS]}), table)
    return [lines, packed(lines, ".gz"), packed(lines, ".zst"), table]


def test_every_table_has_the_same_documents(tmp_path: Path) -> None:
    for file in tables(tmp_path):
        assert [text for _, text in read(file)] == ["one", "", "fünf\n\n", ""]


def test_reading_begins_at_any_document(tmp_path: Path) -> None:
    text = tmp_path / "b.txt"
    text.write_bytes(TEXT.encode())
    units: list[Unit] = ["file", "line", "paragraph"]
    for file in [*tables(tmp_path), text]:
        for unit in units:
            every = read(file, unit)
            for start in range(len(every) + 2):
                assert read(file, unit, start) == every[start:]


def test_a_nested_field(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text('{"page": {"body": "deep"}}\n')
    assert list(documents(str(file), field="page.body", unit="file")) == [(f"{file}:1", "deep")]
    table = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"page": [{"body": "deep"}]}), table)
    assert [t for _, t in documents(str(table), field="page.body", unit="file")] == ["deep"]
    parquet.write_table(pyarrow.table({"page": [{"body": "deep"}, None]}), table)
    assert [t for _, t in documents(str(table), field="page.body", unit="file")] == ["deep", ""]


def test_files_of_a_folder_come_in_order(tmp_path: Path) -> None:
    for name in ("b.jsonl", "a/z.txt.gz", "a.parquet", "notes.pdf", ".hidden.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = ["a/z.txt.gz", "a.parquet", "b.jsonl"]
    assert files_of([tmp_path]) == [str(tmp_path / name) for name in names]


def test_only_regular_files_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "a" / "dir.txt").mkdir(parents=True)
    (tmp_path / "a" / "dir.txt" / "b.txt").touch()
    os.mkfifo(tmp_path / "a" / "pipe.txt")
    assert files_of([tmp_path / "a"]) == [str(tmp_path / "a" / "dir.txt" / "b.txt")]


def test_linked_folders_are_read_and_circles_end(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.txt").touch()
    (tmp_path / "a" / "to b").symlink_to(tmp_path / "b")
    (tmp_path / "a" / "up").symlink_to("..")
    (tmp_path / "b" / "to a").symlink_to(tmp_path / "a")
    (tmp_path / "b" / "none.pdf").symlink_to("nowhere")
    assert files_of([tmp_path / "a"]) == [str(tmp_path / "a" / n) for n in ("a.txt", "to b/b.txt")]
    (tmp_path / "b" / "none.txt").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"to b/none\.txt: a link to nothing"):
        files_of([tmp_path / "a"])


def test_a_file_elsewhere() -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://texts/a.jsonl.gz", "wb") as stream:
        stream.write(gzip.compress(b'{"text": "far"}\n'))
    assert files_of(["memory://texts/*.gz"]) == ["memory://texts/a.jsonl.gz"]
    assert read("memory://texts/a.jsonl.gz") == [("memory://texts/a.jsonl.gz:1", "far")]
    with pytest.raises(InputError, match="no file has such a name"):
        files_of(["memory://texts/*.txt"])
    for file in ("memory://none.txt", "nowhere://none.txt"):
        with pytest.raises(InputError, match=f"{file} cannot be read"):
            read(file)


WRONG = {
    "a.txt": (b"fine\n\xff\n", r"a\.txt:2: byte 0xff is not utf-8.*convert it.* latin-1 -t utf-8"),
    "b.txt": (b"fine\nno\0ne\n", r"b\.txt:2: a NUL"),
    "c.txt": (b"one\rtwo\rthree", r"c\.txt:1: its lines end with"),
    "a.jsonl": (b'{"text": "a"}\n{"txt": "b"}\n', r"a\.jsonl:2: no column 'text'.*'txt'"),
    "b.jsonl": (b'{"text": "a"}\n\n{"text"\n', r"b\.jsonl:3: not JSON"),
    "c.jsonl": (b'{"text": 5}\n', r"c\.jsonl:1: text: expected text, not 5"),
    "d.jsonl": (b'{"text": "\\ud800"}\n', r"d\.jsonl:1: half a surrogate"),
    "e.jsonl": (b'{"text": "\xff"}\n', r"e\.jsonl:1: byte 0xff is not utf-8"),
    "f.jsonl": (b"[]\n", r"f\.jsonl:1: expected an object"),
    "g.jsonl": (
        b'{"n": ' + b"9" * 10_000 + b"}\n",
        r"g\.jsonl:1: an integer of more than 4,300 digits is not read$",
    ),
    "a.jsonl.gz": (gzip.compress(b'{"text": "a"}\n' * 9)[:-9], r"a\.jsonl\.gz:\d+: damaged or cut"),
    "b.jsonl.gz": (b"plain", r"b\.jsonl\.gz:1: damaged or cut"),
    "a.txt.zst": (zstandard.compress(b"a\nb\n" * 99)[:-3], r"a\.txt\.zst:\d+: damaged or cut"),
    "b.txt.zst": (b"plain", r"b\.txt\.zst:1: damaged or cut"),
    "a.parquet": (b"PAR1", r"a\.parquet is not readable as Parquet"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_file_and_line(tmp_path: Path, name: str) -> None:
    content, message = WRONG[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        read(tmp_path / name, "line")


def test_a_table_without_the_column(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": ["one"]}), file)
    with pytest.raises(InputError, match=r"a\.parquet, row 1: no column 'text'.*body"):
        read(file)


def test_wrong_inputs(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / "texts.txt").touch()
    for given, message in (
        ([], "no input"),
        ([tmp_path / "a.csv"], r"a\.csv: a file of texts ends in"),
        ([tmp_path / "text.txt"], r"text\.txt does not exist\. Did you mean 'texts\.txt'"),
        ([tmp_path / "a.parquet.gz"], "does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            files_of(given)
    (tmp_path / "texts.txt").unlink()
    with pytest.raises(InputError, match="no file of texts in this folder"):
        files_of([tmp_path])
