"""The training log: one JSON line for each step and validation, and optionally TensorBoard."""

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from addnorm.errors import InputError


class Journal:
    """Appends metrics to `metrics.jsonl`, unbuffered, so that a run can be watched live.

    Lines contain no wall-clock times, so that identical runs write identical lines.
    """

    def __init__(self, folder: Path, *, tensorboard: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "metrics.jsonl"
        self._board = _summary_writer(folder / "tensorboard") if tensorboard else None

    def write(self, step: int, figures: dict[str, float]) -> None:
        """Append one line, `{"step": …, …}`."""
        line = json.dumps({"step": step, **figures}).encode() + b"\n"
        handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            length = os.fstat(handle).st_size
            if os.write(handle, line) < len(line):  # disk full: leave no partial line
                os.ftruncate(handle, length)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file))
        finally:
            os.close(handle)
        if self._board is not None:
            for name, value in figures.items():
                self._board.add_scalar(name, value, step)

    def flush(self) -> int:
        """Sync all lines to disk; return the file's length in bytes."""
        if self._board is not None:
            self._board.flush()
        with self.file.open("ab") as stream:
            os.fsync(stream.fileno())
            return stream.tell()

    def cut(self, length: int) -> None:
        """Truncate the log to its length at the checkpoint from which the run resumes."""
        with self.file.open("ab") as stream:
            stream.truncate(min(length, stream.tell()))  # never extend, if lines were lost


def _summary_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError(
            "train.tensorboard = true needs an extra package: pip install 'addnorm[tensorboard]'"
        ) from error
    return SummaryWriter(folder)


@dataclass(frozen=True)
class Logged:
    """The lines of a log, and how many more of them are damaged."""

    lines: Sequence[dict[str, float]]
    damaged: int


def read_journal(file: Path) -> Logged:
    """Read a log; a line that a crash or a full disk left incomplete is left out and counted."""
    lines = file.read_bytes().splitlines() if file.is_file() else []
    read = [_figures(line) for line in lines]
    return Logged([one for one in read if one is not None], damaged=read.count(None))


def _figures(line: bytes) -> dict[str, float] | None:
    """The step and the figures of a line; None where it is damaged."""
    try:
        figures = json.loads(line)
    except ValueError:
        return None
    if not isinstance(figures, dict) or "step" not in figures:
        return None
    return figures if all(isinstance(value, int | float) for value in figures.values()) else None
