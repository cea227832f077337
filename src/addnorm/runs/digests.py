"""Digests of a finished run's files: a byte that has changed since is noticed.

`digests.json` has the XXH3 (128 bits) of every file that opening the run reads. It is fast enough
to be compared at every load, and it is no signature: whoever changes a file can change it too.
"""

import json
import mmap
from pathlib import Path

import xxhash

from addnorm.atomic import atomic_write
from addnorm.errors import InputError
from addnorm.files import read_file

DIGESTS = "digests.json"
FILES = ("config.json", "labels.json", "model.safetensors", "*tokenizer.json")
"""What opening a run reads."""


def write_digests(folder: Path) -> None:
    """Write the digests of a run that is finished."""
    files = sorted(file for pattern in FILES for file in folder.glob(pattern))
    found = {file.name: digest(file) for file in files}
    atomic_write(folder / DIGESTS, json.dumps({"xxh3_128": found}, indent=1))


def check_digest(file: Path) -> None:
    """Raise `InputError` where a file is not the one whose digest was written beside it.

    Nothing is known of a file that is not listed, as in a run of an earlier version.
    """
    expected = _digests(file.parent).get(file.name)
    if expected is not None and file.exists() and digest(file) != expected:
        raise InputError(
            f"{file}: damaged: its digest is not that in {DIGESTS}. If you changed it on purpose, "
            f"remove {file.parent / DIGESTS}"
        )


def check_digests(folder: Path) -> int:
    """Compare every file of a run with its digest; return their number.

    Raises `InputError` naming the first that is missing or has changed, and where there are none.
    """
    listed = _digests(folder)
    if not listed:
        raise InputError(
            f"{folder}: no {DIGESTS}: the run is not finished, or of an earlier version"
        )
    for name in listed:
        if not (folder / name).is_file():
            raise InputError(f"{folder / name}: missing, though {DIGESTS} lists it")
        check_digest(folder / name)
    return len(listed)


def digest(file: Path) -> str:
    """The XXH3 of a file's bytes."""
    with file.open("rb") as stream:
        if not file.stat().st_size:
            return xxhash.xxh3_128(b"").hexdigest()
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return xxhash.xxh3_128(mapped).hexdigest()


def _digests(folder: Path) -> dict[str, str]:
    file = folder / DIGESTS
    if not file.is_file():
        return {}
    try:
        found = json.loads(read_file(file))["xxh3_128"]
        return {str(name): str(value) for name, value in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InputError(f"{file}: damaged: {error}") from error
