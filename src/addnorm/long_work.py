"""Signs of life during long work: a line or a bar in a terminal, lines in a log."""

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, count
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment
from rich.status import Status
from rich.text import Text

PATIENCE = 2.0
"""Seconds of silence after which a sign of life is shown."""

LONGEST_SILENCE = 60.0
"""Seconds between two lines of a log."""


def shown_after() -> Iterator[float]:
    """Yield the seconds after which a log gets a line: 2, 4, 8, 16, 32, then every minute."""
    doubled = (PATIENCE * 2**n for n in range(5))
    return chain(doubled, count(LONGEST_SILENCE, LONGEST_SILENCE))


def shown_each_second() -> Iterator[float]:
    """Yield the seconds after which a terminal is updated."""
    return count(1.0, 1.0)


@contextmanager
def ticking(show: Callable[[int], None], at: Iterator[float]) -> Generator[None]:
    """In this context, a thread calls `show` with the elapsed seconds at these times."""
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
def long_work(console: Console, what: str) -> Generator[Callable[[str], None]]:
    """In this context, show the work and its seconds so far, if it takes more than a second or two.

    A terminal has one line, which goes when the work is done; a log gets lines at growing
    intervals. Yields a function that gives the work another name.
    """
    name = what

    def rename(new: str) -> None:
        nonlocal name
        name = new

    if console.quiet:
        yield rename
    elif console.is_interactive:
        status = Status("", console=console)

        def show(seconds: int) -> None:
            status.update(Text(f"{name}, {seconds} s"))  # a file name may look like markup
            status.start()

        try:
            with ticking(show, shown_each_second()):
                yield rename
        finally:
            status.stop()
    else:
        with ticking(lambda seconds: say(console, name, seconds), shown_after()):
            yield rename


@dataclass(frozen=True)
class Narrow:
    """A bar that leaves the last columns free, since a terminal writes `^C` there."""

    bar: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        yield from console.render(self.bar, options.update_width(max(1, options.max_width - 3)))


class NarrowProgress(Progress):
    """A progress display whose bars leave the last columns free."""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars, each narrowed."""
        return map(Narrow, super().get_renderables())


class Advance(Protocol):
    """A function called with the number of items done, and the name of the last one."""

    def __call__(self, done: int, name: str | None = None, /) -> None: ...


@contextmanager
def counted_work(console: Console, what: str, total: int) -> Generator[Advance]:
    """In this context, show how many of `total` items are done, and the remaining time.

    A terminal has a bar, which goes when the work is done; a log gets lines at growing intervals.
    """
    bar = NarrowProgress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
    task = bar.add_task(what, total=total)
    state = what

    def advance(done: int, name: str | None = None, /) -> None:
        nonlocal state
        state = f"{done:,}/{total:,} · {name or what}"
        bar.update(task, completed=done, description=name or what)

    is_log = not (console.is_interactive or console.quiet)
    lines = ticking(lambda seconds: say(console, state, seconds), shown_after())
    with bar, lines if is_log else nullcontext():
        yield advance


def say(console: Console, what: str, seconds: int) -> None:
    """Print a line with the name of the work and its duration in seconds."""
    console.out(f"{what}: {seconds} s so far", highlight=False)
