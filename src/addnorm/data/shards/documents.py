"""Reading documents from text, JSONL and Parquet files, compressed or not, local or remote."""

import gzip
import io
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby, islice
from pathlib import Path
from reprlib import repr as short
from typing import Any, Literal, cast

from addnorm.data.example import is_missing
from addnorm.data.readers.rows import check_text
from addnorm.data.readers.tables import Record, cell_of, json_object
from addnorm.data.readers.text_files import decoded, find
from addnorm.data.shards.options import Unit
from addnorm.errors import InputError, optional, some_of

Document = tuple[str, str]
"""Where a document stands, and its text; the text is blank where a row has none."""

TEXTS = (".txt", ".text", ".md", "")
JSONL = (".jsonl", ".ndjson")
PARQUET = (".parquet",)
COMPRESSED = (".gz", ".zst")
MARK = "\ufeff"
"""The byte-order mark, with which a file may begin."""


def files_of(inputs: Iterable[str | Path]) -> list[str]:
    """Return the files given by inputs: files, folders, and URLs with or without wildcards.

    The files of a folder and of folders in it, linked ones too, come in the order of their paths:
    the regular files of those kinds that are read and not hidden. Raises `InputError` for an input
    that does not exist, has no such file, or is a file of another kind.
    """
    files = [file for given in inputs for file in _files_of(str(given))]
    if not files:
        raise InputError("no input: name files, folders or URLs of texts")
    for file in files:
        _kind(file)
    return files


def _files_of(given: str) -> list[str]:
    if "://" in given:
        return _remote_files(given)
    if not Path(given).is_dir():
        return [str(find(Path(given), Path()))]
    kinds = (".txt", *JSONL, *PARQUET)
    try:
        files = sorted(
            file
            for file in _files_below(Path(given))
            if _suffix(file.name) in kinds and not file.name.startswith(".")
        )
    except OSError as error:
        raise InputError(f"{error.filename} cannot be read: {error.strerror}") from error
    for file in files:
        if not file.exists():
            raise InputError(f"{file}: a link to nothing: remove it, or put its file there")
    if not files:
        raise InputError(f"{given}: no file of texts in this folder: {some_of(kinds)}, or with .gz")
    return [str(file) for file in files]


def _files_below(folder: Path, above: tuple[Path, ...] = ()) -> Iterator[Path]:
    """Yield the regular files and broken links in a folder and its subfolders.

    `above` are the folders that lead to it. A link to one of them, or to a folder that holds one,
    would lead round in a circle, so it is not followed.
    """
    above = (*above, folder.resolve())
    for entry in folder.iterdir():
        if entry.is_file() or not entry.exists():
            yield entry
        elif entry.is_dir():
            to = entry.resolve()
            if not any(path.is_relative_to(to) for path in above):
                yield from _files_below(entry, above)


def _remote_files(url: str) -> list[str]:
    fsspec = optional("fsspec", "shards", url)
    if "*" not in url:
        return [url]
    try:
        files = sorted(file.path for file in fsspec.open_files(url))
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{url} cannot be read: {error}") from error
    if not files:
        raise InputError(f"{url}: no file has such a name")
    protocol = url.partition("://")[0]
    return [f"{protocol}://{file.lstrip('/')}" for file in files]


def _suffix(name: str) -> str:
    """The suffix that decides how a file is read, ignoring compression."""
    path = Path(name)
    return (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix.lower()


def _kind(file: str) -> Literal["text", "jsonl", "parquet"]:
    suffix = _suffix(file)
    if suffix in TEXTS:
        return "text"
    if suffix in JSONL:
        return "jsonl"
    if suffix in PARQUET and Path(file).suffix in PARQUET:
        return "parquet"
    raise InputError(
        f"{file}: a file of texts ends in {some_of([*filter(None, TEXTS), *JSONL, *PARQUET])}; "
        "all but the last also with .gz or .zst"
    )


def documents(file: str, *, field: str, unit: Unit, start: int = 0) -> Iterator[Document]:
    """Yield the documents of a file from number `start` on.

    Of tables they are the cells of the column `field`; of texts, the `unit`. Raises `InputError`,
    with file and line, for what cannot be read: bytes that are not UTF-8, a missing field, a file
    that is damaged or cut short.
    """
    match _kind(file):
        case "text":
            return _texts(file, unit, start)
        case "jsonl":
            return _jsonl(file, field, start)
        case "parquet":
            return _parquet(file, field, start)


def _texts(file: str, unit: Unit, start: int) -> Iterator[Document]:
    if unit == "file":
        with opened(file) as stream:
            whole = b"".join(_lines(file, stream))
        return islice([(file, decoded(whole, file).removeprefix(MARK))], start, None)
    lines = ((f"{file}:{n}", line) for n, line in _text_lines(file, 0))
    if unit == "line":
        return islice(lines, start, None)
    return islice(_paragraphs(lines), start, None)


def _paragraphs(lines: Iterable[Document]) -> Iterator[Document]:
    for filled, group in groupby(lines, key=lambda line: bool(line[1].strip())):
        if filled:
            paragraph = list(group)
            yield paragraph[0][0], "\n".join(line for _, line in paragraph)


def _text_lines(file: str, start: int) -> Iterator[tuple[int, str]]:
    """Yield the lines of a text file from number `start` on, each with its number, from 1."""
    with opened(file) as stream:
        for n, line in islice(enumerate(_lines(file, stream), 1), start, None):
            text = decoded(line, file, first_line=n)
            if text.count("\r") > 1 and not text.endswith("\n"):
                raise InputError(
                    rf"{file}:{n}: its lines end with \r, and lines end with \n or \r\n"
                )
            yield n, text.removeprefix(MARK if n == 1 else "").removesuffix("\n")


def _lines(file: str, stream: io.IOBase) -> Iterator[bytes]:
    """Yield the lines of a stream. Raises `InputError` with the line where it cannot be read."""
    n = 1
    try:
        for line in stream:
            yield line
            n += 1
    except (EOFError, zlib.error, gzip.BadGzipFile, _TruncatedError) as error:
        raise InputError(f"{file}:{n}: damaged or cut short: {error}") from error
    except OSError as error:
        raise InputError(f"{file}:{n}: cannot be read: {error.strerror or error}") from error


def _jsonl(file: str, field: str, start: int) -> Iterator[Document]:
    for n, line in _text_lines(file, start):
        where = f"{file}:{n}"
        yield where, _cell(json_object(line, where), field, where) if line.strip() else ""


def _parquet(file: str, field: str, start: int) -> Iterator[Document]:
    pyarrow = optional("pyarrow", "parquet", f"{file}: Parquet")
    from pyarrow import parquet

    with opened(file) as stream:
        try:
            table = parquet.ParquetFile(stream)
            names: list[str] = table.schema_arrow.names
            column = field if field in names else field.partition(".")[0]
            if column not in names:
                cell_of(dict.fromkeys(names), field, f"{file}, row 1")
            cells = (
                cell
                for batch in table.iter_batches(columns=[column], batch_size=1024)
                for cell in batch.column(0).to_pylist()
            )
            for n, cell in islice(enumerate(cells, 1), start, None):
                where = f"{file}, row {n}"
                yield where, _cell({column: cell}, field, where)
        except InputError:
            raise
        except (ValueError, OSError, pyarrow.ArrowException) as error:
            raise InputError(f"{file} is not readable as Parquet: {error}") from error


def _cell(record: Record, field: str, where: str) -> str:
    """The text in a cell; blank if it is missing. Raises `InputError` for another type."""
    cell = cell_of(record, field, where)
    if is_missing(cell):
        return ""
    if not isinstance(cell, str):
        raise InputError(f"{where}: {field}: expected text, not {short(cell)}")
    check_text(cell, where)
    return cell


# Streams of bytes.


@contextmanager
def opened(file: str) -> Generator[io.IOBase]:
    """Open a local file, or a remote one by fsspec, and decompress it according to its suffix."""
    with _raw(file) as raw:
        unpack = UNPACKERS.get(Path(file).suffix)
        if unpack is None:
            yield raw
            return
        with unpack(file, raw) as stream:
            yield stream


@contextmanager
def _raw(file: str) -> Generator[io.IOBase]:
    remote = "://" in file
    fsspec = optional("fsspec", "shards", file) if remote else None
    try:
        source = Path(file) if fsspec is None else fsspec.open(file, "rb")
        stream = cast(io.IOBase, source.open() if remote else source.open("rb"))
    except (OSError, ValueError, ImportError) as error:
        raise InputError(f"{file} cannot be read: {error}") from error
    with stream:
        yield stream


class _TruncatedError(Exception):
    """A compressed stream is damaged or ends too early."""


class _Unpacked(io.RawIOBase):
    """The decompressed content of a zstandard stream with one or several frames."""

    def __init__(self, file: str, raw: io.IOBase) -> None:
        self._library = optional("zstandard", "shards", file)
        self._raw = raw
        self._frame: Any = None
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and self._more():
            pass
        n = min(len(buffer), len(self._ready))
        buffer[:n], self._ready = self._ready[:n], self._ready[n:]
        return n

    def _more(self) -> bool:
        """Decompress some more; return False at the end."""
        self._packed = self._packed or self._raw.read(2**17)
        if not self._packed:
            if self._frame is not None:
                raise _TruncatedError("the last frame has no end")
            return False
        self._frame = self._frame or self._library.ZstdDecompressor().decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(self._packed))
        except self._library.ZstdError as error:
            raise _TruncatedError(str(error)) from error
        self._packed = self._frame.unused_data if self._frame.eof else b""
        if self._frame.eof:
            self._frame = None
        return True


def _gunzip(_: str, raw: io.IOBase) -> io.IOBase:
    return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw)), 2**17)


def _unzstd(file: str, raw: io.IOBase) -> io.IOBase:
    return io.BufferedReader(_Unpacked(file, raw), 2**17)


UNPACKERS: dict[str, Callable[[str, io.IOBase], io.IOBase]] = {".gz": _gunzip, ".zst": _unzstd}
"""How files of each suffix are unpacked."""
