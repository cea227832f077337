"""Measurements of this machine, kept in the folder of caches: files may be damaged or missing."""

import time
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from addnorm.atomic import atomic_file
from addnorm.files import cache_folder, read_file
from addnorm.processor import file_name

T = TypeVar("T")

HOUR = 3600.0


def kept_file(*facts: str) -> Path | None:
    """The file for what is true of these facts; None where nobody says where a cache may be."""
    try:
        return cache_folder() / "kernels" / f"{file_name(' '.join(facts))}.json"
    except RuntimeError:  # the user has no home
        return None


def read_kept(file: Path | None, of: type[T]) -> tuple[T, bool] | None:
    """What a file holds, and whether it is of the last hour; None where there is nothing whole."""
    if file is None:
        return None
    with suppress(OSError, ValueError, RecursionError):
        kept = TypeAdapter(of).validate_json(read_file(file, 2**16))
        return kept, 0 <= time.time() - file.stat().st_mtime < HOUR
    return None


def keep(file: Path | None, found: object) -> None:
    """Write a file, if there is a place for it; else it is measured again next time."""
    if file is not None:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            with atomic_file(file, concurrent=True) as partial:
                partial.write_bytes(TypeAdapter(type(found)).dump_json(found, indent=1))
