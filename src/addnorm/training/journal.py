"""The training log: one JSON line for each step and validation."""

import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from addnorm.training.callbacks import StepEvent, ValidationEvent
from addnorm.training.interruptions import patiently, to_standard_error

MEASURED_WITH = "measured_with"
"""The field of a line with the settings that its figures depend on, by metric."""


LOG = "metrics.jsonl"
"""The name of the file in a run folder."""


class Journal:
    """Appends metrics to `metrics.jsonl`, unbuffered, so that a run can be watched live.

    Lines contain no wall-clock times, so that identical runs write identical lines. It is the
    first callback of every training. As such it waits for a disk that is full or unwritable (see
    `patiently`), which `say` reports.
    """

    def __init__(self, folder: Path, say: Callable[[str], None] = to_standard_error) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / LOG
        self.say = say

    def on_step(self, event: StepEvent) -> None:
        """Append the line of a step."""
        patiently(lambda: self.write(event.step, event.figures), "the journal", self.say)

    def on_validation(self, event: ValidationEvent) -> None:
        """Append the line of a validation."""

        def write() -> None:
            self.write(event.step, event.figures, event.measured_with)

        patiently(write, "the journal", self.say)

    def write(
        self,
        step: int,
        figures: Mapping[str, float],
        measured_with: Mapping[str, str] | None = None,
    ) -> None:
        """Append one line, `{"step": …, …}`; validations also have `measured_with`, by metric."""
        facts = {MEASURED_WITH: dict(measured_with)} if measured_with else {}
        line = json.dumps({"step": step, **figures, **facts}).encode() + b"\n"
        handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            length = os.fstat(handle).st_size
            if os.write(handle, line) < len(line):  # disk full: leave no partial line
                os.ftruncate(handle, length)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file))
        finally:
            os.close(handle)

    def flush(self) -> int:
        """Sync all lines to disk; return the file's length in bytes."""
        with self.file.open("ab") as stream:
            os.fsync(stream.fileno())
            return stream.tell()

    def cut(self, length: int) -> None:
        """Truncate the log to its length at the checkpoint from which the run resumes."""
        with self.file.open("ab") as stream:
            stream.truncate(min(length, stream.tell()))  # never extend, if lines were lost


@dataclass(frozen=True)
class Logged:
    """The intact lines of a log, and the number of damaged ones.

    `measured_with` has the settings that the figures of a validation depend on, by step and metric.
    """

    lines: Sequence[dict[str, float]]
    n_damaged: int
    measured_with: Mapping[int, Mapping[str, str]]


def read_journal(file: Path) -> Logged:
    """Read a log; a line that a crash or a full disk left incomplete is skipped and counted."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    parsed = [_figures(line) for line in lines]
    intact = [line for line in parsed if line is not None]
    return Logged(
        [figures for figures, _ in intact],
        n_damaged=parsed.count(None),
        measured_with={int(figures["step"]): facts for figures, facts in intact if facts},
    )


def _figures(line: bytes) -> tuple[dict[str, float], dict[str, str]] | None:
    """The step and the figures of a line, and their settings; None if it is damaged."""
    try:
        figures = json.loads(line)
    except ValueError:
        return None
    if not isinstance(figures, dict) or "step" not in figures:
        return None
    facts = figures.pop(MEASURED_WITH, {})
    if not (isinstance(facts, dict) and all(isinstance(fact, str) for fact in facts.values())):
        return None
    numeric = all(isinstance(value, int | float) for value in figures.values())
    return (figures, facts) if numeric else None
