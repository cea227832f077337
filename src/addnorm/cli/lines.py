"""Text in, text out: lines from files or standard input."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from addnorm.errors import InputError, nearest

STANDARD_INPUT = Path("-")


Files = Annotated[Path, Parameter(allow_leading_hyphen=True)]
"""An argument for `check_files`: `-` is a file too, so what begins with it must be let through."""


def check_files(files: Iterable[Path], options: Iterable[str]) -> None:
    """Raise `InputError` for a word that is meant as an option, but is none of the command's."""
    for word in map(str, files):
        if word.startswith("-") and word != "-":
            raise InputError(f"Unknown option: {word}.{nearest(word, options)}")


def lines_from(files: Sequence[Path]) -> Iterator[str]:
    r"""The lines of the files, or of standard input where there are none or one is `-`.

    Lines end at "\n" alone. Raises `InputError`, with file and line, for what is missing or not
    UTF-8.
    """
    for file in files or [STANDARD_INPUT]:
        if file == STANDARD_INPUT:
            yield from _lines("standard input", sys.stdin.buffer)
        else:
            try:
                stream = file.open("rb")
            except OSError as error:
                raise InputError(f"{file}: {error.strerror}") from error
            with stream:
                yield from _lines(str(file), stream)


def groups_from(files: Sequence[Path], size: int = 256) -> Iterator[tuple[int, list[str]]]:
    """The same lines in groups worth a batch, each after the number of lines before it."""
    lines = lines_from(files)
    first = 0
    while group := list(islice(lines, size)):
        yield first, group
        first += len(group)


def _lines(name: str, stream: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(stream, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{name}:{number}: not UTF-8 at byte {error.start + 1}") from error
        yield text.removesuffix("\n").removesuffix("\r")


def words_of(line: str) -> list[str]:
    """The words between spaces and tabs, as in tagged data: other white space is part of them."""
    return [word for word in line.replace("\t", " ").split(" ") if word]


def one_line(text: str) -> str:
    r"""The text with its line breaks written as `\n` and `\r`."""
    return text.replace("\n", "\\n").replace("\r", "\\r")
