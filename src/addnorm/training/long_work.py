"""Signs of life while something takes long: one line in a terminal, several in a log."""

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import chain, count

from rich.console import Console
from rich.status import Status

PATIENCE = 2.0
"""Seconds of silence after which a sign of life is shown."""

LONGEST_SILENCE = 60.0
"""Seconds between two lines of a log."""


def shown_after() -> Iterator[float]:
    """Yield the seconds after which a log gets a line: 2, 4, 8, 16 and 32, then every minute."""
    doubled = (PATIENCE * 2**n for n in range(5))
    return chain(doubled, count(LONGEST_SILENCE, LONGEST_SILENCE))


def shown_each_second() -> Iterator[float]:
    """Yield the seconds after which a terminal is brought up to date."""
    return count(1.0, 1.0)


@contextmanager
def ticking(show: Callable[[int], None], at: Iterator[float]) -> Generator[None]:
    """Call `show` with the seconds that have passed, at these seconds, in a thread."""
    begun, done = time.monotonic(), threading.Event()

    def tick() -> None:
        for moment in at:
            if done.wait(max(0.0, begun + moment - time.monotonic())):
                return
            show(round(time.monotonic() - begun))

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def long_work(console: Console, what: str) -> Generator[None]:
    """Name the work, and its seconds so far, if it takes more than a second or two.

    A terminal has one line, which goes when the work is done; a log gets lines at growing
    intervals.
    """
    if console.quiet:
        yield
    elif console.is_terminal:
        status = Status(what, console=console)

        def show(seconds: int) -> None:
            status.update(f"{what}, {seconds} s")
            status.start()

        try:
            with ticking(show, shown_each_second()):
                yield
        finally:
            status.stop()
    else:
        with ticking(lambda seconds: say(console, what, seconds), shown_after()):
            yield


def say(console: Console, what: str, seconds: int) -> None:
    """Print the name of the work, and for how many seconds it lasts, as a line."""
    console.out(f"{what}: {seconds} s so far", highlight=False)
