"""Reading text files, with errors located by file and line."""

import gzip
import os
import zlib
from abc import ABC, abstractmethod
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from addnorm.config import Probability, config
from addnorm.data.examples import Corpus
from addnorm.data.readers.saved_dataset import is_saved
from addnorm.errors import InputError, nearest
from addnorm.files import check_regular, nearest_encoding

T = TypeVar("T")

ROOT = "ADDNORM_DATA"
"""The environment variable that names the base folder of relative data paths."""


def base_of(root: Path | None) -> Path:
    """Return where relative paths start: `root`, else $ADDNORM_DATA, else the current folder."""
    return root or Path(os.environ.get(ROOT, ""))


def find(path: Path, root: Path | None = None) -> Path:
    """Resolve `path` relative to `root`, else to $ADDNORM_DATA, else to the current folder.

    The result is a file, or the folder of a dataset that was saved to disk. Raises `InputError`,
    with the nearest name in the folder, if there is no such file.
    """
    full = base_of(root) / path
    if full.is_file() or is_saved(full):
        return full
    if full.is_dir():
        raise InputError(f"{full} is a folder, not a file")
    if full.exists():
        check_regular(full)
    folder = full.parent
    if not folder.is_dir():
        raise InputError(f"{full} does not exist, nor does its folder{_hint(root)}")
    names = [entry.name for entry in folder.iterdir()]
    raise InputError(f"{full} does not exist.{nearest(full.name, names)}{_hint(root)}")


def _hint(root: Path | None) -> str:
    if root is not None or ROOT in os.environ:
        return ""
    return f" (relative paths start at root, else at ${ROOT}, else here)"


UNPACKED = 2**26
"""The size in bytes to which any .gz file may unpack; larger files may unpack to more."""


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, unpacked if its name ends in .gz."""
    try:
        return _unpacked(path) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path} is a damaged or truncated gzip file: {error}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def _unpacked(path: Path) -> bytes:
    """Unpack a .gz file. Raises `InputError` for a decompression bomb."""
    most = max(UNPACKED, 100 * path.stat().st_size)
    with gzip.open(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{path} unpacks to more than {most:,} bytes, a hundred times its size")
    return data


def read_text(path: Path, encoding: str = "utf-8") -> str:
    r"""Return the text of a file, with "\r\n" as "\n" and without a byte-order mark.

    Raises `InputError` for an empty file, a NUL, and bytes that are invalid in the encoding.
    """
    text = decoded(read_bytes(path), str(path), encoding).removeprefix("\ufeff")
    if not text:
        raise InputError(f"{path} is empty")
    return text


def decoded(data: bytes, name: str, encoding: str | None = None, first_line: int = 1) -> str:
    r"""Return the text of the bytes of a file from a line on, with "\r\n" as "\n".

    `encoding` is None where a file must be UTF-8. Raises `InputError`, with the line, for a NUL,
    and for bytes that are invalid in the encoding.
    """
    fixed, encoding = encoding is None, encoding or "utf-8"
    try:
        text = data.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + first_line
        other = "utf-16" if data[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "latin-1"
        advice = (
            f"convert it, e.g. by `iconv -f {other} -t utf-8`"
            if fixed
            else f'name it, e.g. encoding = "{other}"'
        )
        raise InputError(
            f"{name}:{line}: byte 0x{data[error.start]:02x} is not {encoding}. "
            f"If the file is in another encoding, {advice}"
        ) from error
    except (LookupError, ValueError) as error:
        raise InputError(
            f"{name}: encoding {encoding!r} is unknown.{nearest_encoding(encoding)} Valid: utf-8, "
            "latin-1, and Python's other encodings"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + first_line
        raise InputError(
            f"{name}:{line}: a NUL: the file is not text, or its encoding is not {encoding}"
        )
    return text


def lines_of(text: str) -> list[str]:
    r"""Split a text into lines at "\n" only, not at U+2028, U+0085 and the like."""
    return text.removesuffix("\n").split("\n")


def given(train: T, valid: T | None, test: T | None) -> dict[str, T]:
    """Return the splits that are not None, by name."""
    splits = {"train": train, "valid": valid, "test": test}
    return {name: value for name, value in splits.items() if value is not None}


@config
class Files(ABC):
    """The fields and methods that sources of text files share."""

    root: Path | None = None
    """Where relative paths start; by default `$ADDNORM_DATA`, else the current folder."""
    encoding: str = "utf-8"
    """The character encoding of all files, by its Python name, such as `latin-1`."""
    lowercase: bool = False
    """Put the text in lower case; labels and tags keep theirs."""
    valid_fraction: Probability = 0.0
    """The share of train that is held out for validation, where `valid` names no file."""

    @abstractmethod
    def load(self) -> Corpus:
        """Read and check every file. Raises `InputError` with file and line of the first error."""

    def read(self, path: Path, *, lines: bool = True) -> tuple[Path, str]:
        r"""Return the resolved path and the text of a file, which has `lines` or is one document.

        Raises `InputError` for lines that end with \r.
        """
        full = find(path, self.root)
        text = read_text(full, self.encoding)
        if lines and text.count("\r") > text.count("\n"):
            raise InputError(
                rf"{full}: its lines end with \r, and lines end with \n or \r\n: convert it, "
                rf"with `tr '\r' '\n' < {path.name} > new` for example"
            )
        return full, text

    def lines(self, path: Path) -> Iterator[tuple[str, str]]:
        """Yield the location (`file:line`) and text of every line of a file."""
        full, text = self.read(path)
        return ((f"{full}:{n}", line) for n, line in enumerate(lines_of(text), 1))
