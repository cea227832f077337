"""The texts of image and sound files on standard output."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from addnorm.cli.generated import as_json, as_lines
from addnorm.cli.lines import Reading
from addnorm.errors import InputError

if TYPE_CHECKING:
    from addnorm.generate import DecodingConfig
    from addnorm.runs.run import Run


def files_and_errors(
    files: Sequence[Path], reading: Reading, what: str = "image or sound files"
) -> tuple[list[Path], Literal["stop", "skip"]]:
    """The files to read, and what to do about a bad one. Raises `InputError` without files."""
    if not files:
        raise InputError(f"name the {what} to read")
    if reading.errors == "replace":
        raise InputError("--errors replace is for text: give stop or skip")
    return list(files), reading.errors


class Skipped:
    """Says each thing that is skipped, and at the end how many: `2 of 7 files skipped`."""

    def __init__(self, of: str) -> None:
        self.of, self.n = of, 0

    def __call__(self, error: InputError) -> None:
        self.n += 1
        print(f"addnorm: {error}: skipped", file=sys.stderr)

    def __enter__(self) -> "Skipped":
        return self

    def __exit__(self, *_: object) -> None:
        if self.n:
            print(f"addnorm: {self.n} {self.of} skipped", file=sys.stderr)


def write_files(
    opened: "Run",
    files: Sequence[Path],
    decoding: "DecodingConfig",
    max_new_tokens: int | None,
    reading: Reading,
    *,
    json_lines: bool,
) -> None:
    """Write the texts of each file, a line each: the text, a tab, and the file's name."""
    from addnorm.runs.media import transcribe_files

    paths, errors = files_and_errors(files, reading)
    n_best = decoding.n_best if decoding.kind == "beam" else 1
    with Skipped(f"of {len(paths)} files") as skipped:
        found = transcribe_files(
            opened, paths, decoding, max_new_tokens=max_new_tokens, errors=errors, skipped=skipped
        )
        for file, best in found:
            lines = as_json(best, str(file)) if json_lines else as_lines(best, n_best)
            tail = "" if json_lines else f"\t{file}"
            print("\n".join(line + tail for line in lines), flush=True)
