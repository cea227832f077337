"""Checksums of a finished run's files, to detect later changes or damage.

`digests.json` has the XXH3 hash (128 bits) of every file that is read when opening the run. It is
fast enough to be checked on every load. It is not a signature: anyone who changes a file can also
change its digest.
"""

import json
import mmap
from dataclasses import dataclass
from pathlib import Path

import xxhash
from pydantic import TypeAdapter

from addnorm.atomic import atomic_write
from addnorm.errors import InputError
from addnorm.files import read_json
from addnorm.runs.files.layout import OPENED

DIGESTS = "digests.json"


@dataclass(frozen=True)
class Listed:
    """The digest of each file of a run by its name."""

    xxh3_128: dict[str, str]


def write_digests(folder: Path) -> None:
    """Write the digests of a finished run."""
    found = {file for pattern in OPENED for file in folder.glob(pattern)}
    files = sorted(file for file in found if file.is_file())
    listed = {file.relative_to(folder).as_posix(): digest(file) for file in files}
    atomic_write(folder / DIGESTS, json.dumps({"xxh3_128": listed}, indent=1))


def check_digest(file: Path) -> None:
    """Raise `InputError` if a file does not match its digest.

    Files that are not listed are not checked, as in runs of earlier versions.
    """
    expected = _digests(file.parent).get(file.name)
    if expected is not None and file.exists():
        _check(file, expected, file.parent / DIGESTS)


def _check(file: Path, expected: str, listed: Path) -> None:
    if digest(file) != expected:
        raise InputError(
            f"{file}: damaged: its digest is not that in {DIGESTS}. If you changed it on purpose, "
            f"remove {listed}"
        )


def check_digests(folder: Path) -> int:
    """Check every file of a run against its digest; return the number of files.

    Raises `InputError` naming the first missing or changed file, or if there are no digests.
    """
    listed = _digests(folder)
    if not listed:
        raise InputError(
            f"{folder}: no {DIGESTS}: the run is not finished, or of an earlier version"
        )
    for name, expected in listed.items():
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: missing, though {DIGESTS} lists it")
        _check(folder / name, expected, folder / DIGESTS)
    return len(listed)


def digest(file: Path) -> str:
    """The XXH3 hash of a file."""
    with file.open("rb") as stream:
        if not file.stat().st_size:
            return xxhash.xxh3_128(b"").hexdigest()
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return xxhash.xxh3_128(mapped).hexdigest()


def _digests(folder: Path) -> dict[str, str]:
    file = folder / DIGESTS
    return read_json(file, TypeAdapter(Listed)).xxh3_128 if file.is_file() else {}
