"""Interruptions of training: Ctrl-C and SIGTERM, a full or unwritable disk, and full memory."""

import errno
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from addnorm.errors import InputError

T = TypeVar("T")

WAIT = 60.0
"""Seconds to keep retrying a failed write."""

PASSING = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.EIO,
    errno.ESTALE,
}
"""Errors that may be fixed from outside while a run waits: space, quota, mount, permissions."""


class ExhaustedError(InputError):
    """Memory is full, or the disk is full or unwritable and stayed so while the run waited."""


@contextmanager
def stop_requests(first: Callable[[], None] = lambda: None) -> Generator[list[int]]:
    """Yield a list that gets an entry on Ctrl-C or SIGTERM; a second signal stops immediately.

    `first` is called at the first signal, to notify the user.
    """
    requests: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield requests  # only the main thread can handle signals
        return

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def request(number: int, _: object) -> None:
        requests.append(number)
        signal.signal(number, before[signal.Signals(number)])
        if len(requests) == 1:
            first()

    try:
        for number in before:
            signal.signal(number, request)
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def patiently(write: Callable[[], T], what: str, say: Callable[[str], None]) -> T:
    """Call `write` until it succeeds, for at most `WAIT` seconds; return its result.

    Reports once that it is waiting, and once that it continues. Raises `ExhaustedError` after that
    time.
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
                say(f"{problem}. Waiting up to {WAIT:.0f} s for this to be fixed")
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
        else:
            if pause > 0.1:
                say(f"{what} is written: training continues")
            return result


def out_of_memory(error: BaseException) -> str | None:
    """A message for an out-of-memory error; None for any other error."""
    if type(error).__name__ == "OutOfMemoryError":
        return "the device is out of memory"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return "out of memory"
    return None


def to_standard_error(line: str) -> None:
    """Print a line to standard error."""
    print(line, file=sys.stderr, flush=True)
