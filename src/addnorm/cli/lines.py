"""Text in, text out: lines from files or standard input, plain or as JSON."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from addnorm.errors import InputError


def lines_from(files: Sequence[Path]) -> Iterator[str]:
    """The lines of the files, or of standard input where there are none or one is `-`.

    Raises `InputError` with file and line for what is missing or not UTF-8.
    """
    for file in files or [Path("-")]:
        if file == Path("-"):
            yield from _lines("standard input", sys.stdin.buffer)
        else:
            try:
                with file.open("rb") as stream:
                    yield from _lines(str(file), stream)
            except OSError as error:
                raise InputError(f"{file}: {error.strerror}") from error


def groups_from(files: Sequence[Path], size: int = 256) -> Iterator[list[str]]:
    """The same lines in groups that are worth a batch; whoever pipes a few gets them at the end."""
    lines = lines_from(files)
    while group := list(islice(lines, size)):
        yield group


def _lines(name: str, stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        try:
            yield line.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InputError(f"{name}:{number}: not UTF-8 at byte {error.start + 1}") from error
