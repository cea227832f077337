"""Patience with a full disk, or a folder that cannot be written: wait a while, then say so."""

import errno
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from addnorm.errors import InputError

T = TypeVar("T")

WAIT = 60.0
"""Seconds to wait for a disk to take what it refused."""

PASSING = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ESTALE,
}
"""What somebody else may mend while a run waits: space, a quota, a mount, permissions."""


class ExhaustedError(InputError):
    """Memory or the disk is full, and the disk still was after a run had waited for it."""


def patiently(write: Callable[[], T], what: str, say: Callable[[str], None]) -> T:
    """Call `write` until the disk takes it, for at most `WAIT` seconds; return its result.

    Says once that it waits, and once that it goes on. Raises `ExhaustedError` after that time.
    """
    end = time.monotonic() + WAIT
    pause = 0.1
    while True:
        try:
            result = write()
        except OSError as error:
            if error.errno not in PASSING:
                raise
            where = f" ({error.filename})" if error.filename else ""
            problem = f"{what} cannot be written: {error.strerror}{where}"
            if time.monotonic() >= end:
                raise ExhaustedError(f"{problem}, and could not for {WAIT:.0f} s") from error
            if pause == 0.1:
                say(f"{problem}. Waiting up to {WAIT:.0f} s for that to be mended")
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
        else:
            if pause > 0.1:
                say(f"{what} is written: going on")
            return result


def out_of_memory(error: BaseException) -> str | None:
    """What to say of an error that means that memory is full; None of any other."""
    text = str(error)
    if type(error).__name__ == "OutOfMemoryError":
        return "the device is out of memory"
    if isinstance(error, MemoryError) or "can't allocate memory" in text:
        return "out of memory"
    return None


def to_standard_error(line: str) -> None:
    """Print a line where messages go."""
    print(line, file=sys.stderr, flush=True)
