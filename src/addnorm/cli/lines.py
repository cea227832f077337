"""Reading lines of text from files or standard input."""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from addnorm.cli.fields import UnknownWordError
from addnorm.errors import InputError, TextError
from addnorm.files import nearest_encoding

T = TypeVar("T")
STANDARD_INPUT = Path("-")
CHUNK = 2**20
"""The maximum number of bytes to read at once."""
LONGEST = 2**20
"""Bytes of a line: one text that is longer would take a model minutes, and more memory than there
is.
"""


SIGNATURES = {
    b"\x89PNG\r": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"GIF87a": "a picture",
    b"GIF89a": "a picture",
    b"II*\0": "a picture",
    b"MM\0*": "a picture",
    b"fLaC\0": "a sound",
    b"OggS\0": "a sound",
    b"ID3\3": "a sound",
    b"ID3\4": "a sound",
    b"\xff\xfb": "a sound",
}
"""The first bytes of files that hold no text."""

NUMBER = re.compile(r"^(row|text|prompt) \d+(: | (?=has))")
"""The number of an input in a message about it, which the place in a file stands for."""


Files = Annotated[Path, Parameter(allow_leading_hyphen=True)]
"""An argument for `check_files`; `-` is standard input, so a leading dash is allowed."""


def check_files(files: Iterable[Path]) -> None:
    """Raise `InputError` for a file name that looks like a misspelt option."""
    for word in map(str, files):
        if word.startswith("-") and word != "-":
            raise UnknownWordError(word)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Reading:
    """How lines are read.

    Parameters
    ----------
    encoding
        The encoding of the files and of standard input.
    errors
        What to do about a line that cannot be read: `stop` there, with all before it answered;
        `skip` it, counted at the end; or `replace` what is wrong in it by U+FFFD.
    """

    encoding: str = "utf-8"
    errors: Literal["stop", "skip", "replace"] = "stop"

    def __post_init__(self) -> None:
        try:
            in_bytes = b"a\nb".decode(self.encoding) == "a\nb"
        except LookupError as error:
            raise InputError(
                f"--encoding {self.encoding}: unknown.{nearest_encoding(self.encoding)} "
                "Valid: utf-8, latin-1, and others that Python has"
            ) from error
        except UnicodeError:
            in_bytes = False
        if not in_bytes:
            raise InputError(
                f"--encoding {self.encoding}: its line ends are more than one byte: "
                "convert to utf-8 first"
            )


STRICT = Reading()


class SkipCounter:
    """Prints the error of each input that is skipped, then how many: `2 of 7 files skipped`.

    Where nothing is to be skipped, it raises the first.
    """

    def __init__(self, reading: Reading, several: str, single: str | None = None) -> None:
        self.skips, self.n = reading.errors == "skip", 0
        self.several, self.single = several, single or several

    def __call__(self, error: InputError) -> None:
        if not self.skips:
            raise error
        self.n += 1
        print(f"addnorm: {error}: skipped", file=sys.stderr)

    def __enter__(self) -> "SkipCounter":
        return self

    def __exit__(self, *_: object) -> None:
        if self.n:
            what = self.single if self.n == 1 else self.several
            print(f"addnorm: {self.n} {what} skipped", file=sys.stderr)


def media_files(
    files: Sequence[Path], reading: Reading, what: str = "image or sound files", of: str = ""
) -> tuple[list[Path], SkipCounter]:
    """Return the files to read, and a counter for skipped ones. Raises `InputError` without any."""
    if not files:
        raise InputError(f"name the {what} to read")
    if reading.errors == "replace":
        raise InputError("--errors replace is for text: give stop or skip")
    return list(files), SkipCounter(reading, of or f"of {len(files)} files")


Rows = Callable[[Path], Iterable[tuple[str, Any]] | None]
"""The rows of a file of another kind, such as conversations, with their places; None for lines.

In place of a damaged row is its `InputError`.
"""


class Lines:
    r"""The lines of the files; those of standard input if there are no files or one is `-`.

    Lines end at "\n" alone. They come in groups worth a batch, or fewer as soon as nothing more is
    there: a pause in a pipe does not delay them. Raises `InputError` for a file that is missing,
    before any other is read.
    """

    def __init__(
        self, files: Sequence[Path], reading: Reading = STRICT, rows: Rows | None = None
    ) -> None:
        for file in files:
            if str(file) != "-" and not file.exists():
                raise InputError(f"{file}: No such file or directory")
        self.files = files
        self.reading = reading
        self.rows = rows
        self.places: dict[int, str] = {}
        """The place of each row, by the number of lines and rows before it."""
        self.read = 0
        self.skipped = SkipCounter(reading, "lines", "line")
        self.begun: list[tuple[int, str]] = []
        """The number of lines before each file, and its name."""

    def answers(self, answer: Callable[[int, list[Any]], Sequence[T]]) -> Iterator[tuple[int, T]]:
        """Yield the answer to each line with the line's number.

        It is called with the number of lines before a group and the group. Where it raises
        `TextError`, halves of the group are tried, to find the line that is meant. Any
        other error is about no line, and ends all. Of no line at all it is called once too, so
        that a model of another task is refused.
        """
        with self.skipped:
            first = None
            for first, group in self.groups():
                yield from self._answers(answer, first, group)
            if first is None:
                answer(0, [])

    def _answers(
        self, answer: Callable[[int, list[Any]], Sequence[T]], first: int, group: list[Any]
    ) -> Iterator[tuple[int, T]]:
        try:
            answers = answer(first, group)
        except TextError as error:
            if len(group) == 1:
                problem = NUMBER.sub("", str(error))
                self.skipped(TextError(f"{self._place(first)}: {problem}"))
                return
            half = len(group) // 2
            yield from self._answers(answer, first, group[:half])
            yield from self._answers(answer, first + half, group[half:])
        else:
            yield from enumerate(answers, start=first + 1)

    def groups(self, size: int = 256) -> Iterator[tuple[int, list[Any]]]:
        """Yield groups of lines, each with the number of lines before it.

        Raises `InputError`, with file and line, for a missing file and a line that cannot be
        decoded, after all lines before it have been given.
        """
        for file in self.files or [STANDARD_INPUT]:
            if file == STANDARD_INPUT:
                yield from self._groups("standard input", sys.stdin.buffer, size)
                continue
            rows = None if self.rows is None else self.rows(file)
            if rows is not None:
                yield from self._grouped(self._placed(rows), size)
                continue
            try:
                stream = file.open("rb", buffering=0)
            except OSError as error:
                raise InputError(f"{file}: {error.strerror}") from error
            with stream:
                yield from self._groups(str(file), stream, size)

    def _groups(self, name: str, stream: Any, size: int) -> Iterator[tuple[int, list[str]]]:
        first = self.read
        self.begun.append((first, name))
        for chunk in _whole_lines(stream):
            decoded = (self._decoded(name, self.read - first + 1, line) for line in chunk)
            yield from self._grouped(decoded, size)

    def _placed(self, rows: Iterable[tuple[str, Any]]) -> Iterator[Any]:
        for where, row in rows:
            self.places[self.read] = where
            yield row

    def _grouped(self, items: Iterable[Any], size: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield groups of readable lines, each with the number of lines before it."""
        group: list[Any] = []
        for item in items:
            wrong = isinstance(item, InputError)
            if wrong and group:
                yield self.read - len(group), group
                group = []
            if wrong:
                self.skipped(item)
            else:
                group.append(item)
            self.read += 1
            if len(group) == size:
                yield self.read - len(group), group
                group = []
        if group:
            yield self.read - len(group), group

    def _place(self, before: int) -> str:
        """Return the file and line number of the line with this index."""
        if before in self.places:
            return self.places[before]
        first, name = next(begun for begun in reversed(self.begun) if begun[0] <= before)
        return f"{name}:{before - first + 1}"

    def _decoded(self, name: str, number: int, line: bytes) -> str | TextError:
        """Return the text of a line, or the error in it."""
        if len(line) > LONGEST:
            return TextError(
                f"{name}:{number}: a line of more than {LONGEST:,} bytes: each line is one text, "
                "so divide it into lines"
            )
        if number == 1 and (medium := _medium(line)):
            return TextError(f"{name}: {medium}, and this model reads lines of text")
        encoding = self.reading.encoding.upper()
        how = "replace" if self.reading.errors == "replace" else "strict"
        try:
            text = line.decode(self.reading.encoding, how)
        except UnicodeDecodeError as error:
            return TextError(f"{name}:{number}: not {encoding} at byte {error.start + 1}")
        if "\0" in text and how == "replace":
            text = text.replace("\0", "\ufffd")
        elif "\0" in text:
            return TextError(
                f"{name}:{number}: a NUL: this is not text, or its encoding is not {encoding}"
            )
        if number == 1:
            text = text.removeprefix("\ufeff")
        return text.removesuffix("\r")


def _medium(line: bytes) -> str:
    """The medium of a file by its first bytes: `a picture`, `a sound`, or empty for a text."""
    if line.startswith((b"RIFF", b"FORM")):
        kinds = {b"WAVE": "a sound", b"AIFF": "a sound", b"AIFC": "a sound", b"WEBP": "a picture"}
        return kinds.get(line[8:12], "")
    if line.startswith(b"BM") and line[6:10] == bytes(4):  # BMP: the size, then four zeros
        return "a picture"
    media = (medium for start, medium in SIGNATURES.items() if line.startswith(start))
    return next(media, "")


def _whole_lines(stream: Any) -> Iterator[list[bytes]]:
    """Yield the complete lines that have arrived, without their line ends.

    Of one that is longer than `LONGEST` a beginning comes that is so too.
    """
    read = stream.read1 if hasattr(stream, "read1") else stream.read
    rest: list[bytes] = []
    n = 0
    while chunk := read(CHUNK):
        first, *lines = chunk.split(b"\n")
        if n <= LONGEST:
            rest.append(first)
            n += len(first)
        if lines:
            yield [b"".join(rest), *lines[:-1]]
            rest, n = [lines[-1]], len(lines[-1])
    if n:
        yield [b"".join(rest)]


def pair_of(line: str, number: int) -> tuple[str, str]:
    """Split a line into its two texts. Raises `TextError` unless exactly one tab separates them."""
    first, *others = line.split("\t")
    if len(others) != 1:
        raise TextError(f"text {number}: {len(others)} tabs, and a pair is two texts with one tab")
    return first, others[0]


def one_line(text: str) -> str:
    r"""Escape the line breaks of a text as `\n` and `\r`."""
    return text.replace("\n", "\\n").replace("\r", "\\r")
