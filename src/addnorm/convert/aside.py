"""Writing aside: an export stands in its place whole, or not at all."""

import os
import shutil
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def aside(folder: Path, replaces: Sequence[str] = ()) -> Generator[Path]:
    """A folder to write in; its files move into `folder` at the end, in place of their namesakes.

    `replaces` are patterns of files that an earlier export left there: those that were not written
    anew are removed. Where the body raises, `folder` is as it was.
    """
    there = folder.is_dir()
    partial = folder / ".export.partial" if there else folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # what a crash left
    partial.mkdir(parents=True)
    try:
        yield partial
        for file in partial.iterdir():
            _sync(file)
        if there:
            _into_place(partial, folder, replaces)
        else:
            partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _into_place(partial: Path, folder: Path, replaces: Sequence[str]) -> None:
    new = {file.name for file in partial.iterdir()}
    for name in sorted(new):
        (partial / name).replace(folder / name)
    for pattern in replaces:
        for earlier in folder.glob(pattern):
            if earlier.name not in new:
                earlier.unlink()
    _sync(folder)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
