"""Training progress, as a progress bar or, without a terminal, as lines."""

import math
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from addnorm.folding import folded
from addnorm.long_work import NarrowProgress, long_work, shown_after, shown_each_second, ticking
from addnorm.training.callbacks import StepEvent, ValidationEvent

LONG = 2**24
"""The length in characters of a text from which its processing is reported without a bar."""


BETWEEN_VALIDATIONS = 5.0
"""The least seconds between two validations that are shown; the log has all of them."""


def shows_bars(console: Console) -> bool:
    """Whether a console shows progress bars: a terminal does, unless its `TERM` is `dumb`, and a
    notebook with ipywidgets.
    """
    return console.is_interactive or (console.is_jupyter and find_spec("ipywidgets") is not None)


def tell(console: Console, line: str) -> None:
    """Print a line, folded between words in a terminal."""
    console.out(folded(line, console.width) if console.is_terminal else line, highlight=False)


class ProgressBar:
    """Shows the loss, the tokens (or another `unit`) per second and the remaining time.

    A context manager around `Trainer.fit`. Without a terminal, as under nohup or on a cluster, it
    prints a line at steps 1, 2, 5, 10, 20, 50 and so on, at least every minute, and at the end.
    """

    def __init__(self, console: Console, unit: str = "tokens") -> None:
        self._bar = NarrowProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(f"loss {{task.fields[loss]:.3f}} · {{task.fields[speed]:,.0f}} {unit}/s ·"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            disable=not shows_bars(console),
        )
        self._task = self._bar.add_task("training", total=None, loss=float("nan"), speed=0.0)
        self.console, self._unit = console, unit
        self._speed = _Speed()
        self._lines = _Lines()
        self._total: int | None = None
        self._shown_at = -math.inf

    def __enter__(self) -> "ProgressBar":
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        """End the bar; in a terminal it stays visible if training has finished."""
        self._bar.live.transient = kind is not None
        self._bar.__exit__(None, None, None)

    @contextmanager
    def busy(self, what: str) -> Generator[None]:
        """Show the work between two steps, if it takes long."""
        if self._bar.disable:
            with long_work(self.console, what):
                yield
            return
        show = partial(self._show_work, what)
        try:
            with ticking(show, shown_each_second()):
                yield
        finally:
            self._bar.update(self._task, description="training")

    def _show_work(self, what: str, seconds: int) -> None:
        self._bar.update(self._task, description=f"{what}, {seconds} s")

    def on_step(self, event: StepEvent) -> None:
        """Advance by one step."""
        step, total, loss = event.step, event.total_steps, event.loss
        speed = self._speed.after(int(event.figures["tokens"]))
        self._total = total
        self._bar.update(self._task, completed=step, total=total, loss=loss, speed=speed)
        if self._bar.disable and (self._lines.due(step) or step == total):
            left = self._lines.left(step, total)
            self.console.out(
                f"step {step:,}/{total:,} · loss {loss:.3f} · {speed:,.0f} {self._unit}/s · "
                f"{left} left",
                highlight=False,
            )

    def say(self, line: str) -> None:
        """Print a line above the bar, folded between words in a terminal."""
        tell(self.console, line)

    def on_validation(self, event: ValidationEvent) -> None:
        """Print validation scores above the bar: the last ones, others every few seconds."""
        self._speed.restart()
        now = time.monotonic()
        if event.step != self._total and now - self._shown_at < BETWEEN_VALIDATIONS:
            return
        self._shown_at = now
        scores = {**event.scores, **{f"train_{name}": value for name, value in event.load.items()}}
        figures = " · ".join(f"{name} {value:.4g}" for name, value in scores.items())
        self.console.print(f"step {event.step:>6} · valid {figures}")


@contextmanager
def text_progress(console: Console, what: str, characters: int) -> Generator[Callable[[int], None]]:
    """Show the progress of processing a text; yields a function that advances it.

    `characters` is the length of the text, 0 if it is unknown. Without a terminal, prints a line
    for a long text, and lines at growing intervals.
    """
    done = 0
    bar = NarrowProgress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        disable=not console.is_interactive,
    )
    task = bar.add_task(what, total=None)
    if not console.is_interactive and characters >= LONG:
        console.out(f"{what}: {characters:,} characters", highlight=False)

    def advance(more: int) -> None:
        nonlocal done
        done += more
        about = what if characters or not done else f"{what}: {done:,} characters"
        bar.update(task, completed=done, total=characters or None, description=about)

    def show(seconds: int) -> None:
        share = f"{done / characters:.0%}" if characters else f"{done:,} characters"
        state = f", {share}" if done else ""
        console.out(f"{what}{state}: {seconds} s so far", highlight=False)

    lines = nullcontext() if console.is_interactive else ticking(show, shown_after())
    with bar, lines:
        yield advance


class _Lines:
    """Decides when to print a line instead of a bar: ever more rarely, but every minute."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last = time.monotonic()

    def due(self, step: int) -> bool:
        now = time.monotonic()
        self._first = self._first or (now, step)
        if str(step).rstrip("0") in ("1", "2", "5") or now - self._last >= 60.0:
            self._last = now
            return True
        return False

    def left(self, step: int, total: int) -> timedelta | str:
        """The estimated remaining time, from all steps so far."""
        begun, first = self._first or (0.0, step)
        if step == first:
            return "?"
        seconds = (time.monotonic() - begun) / (step - first) * (total - step)
        return timedelta(seconds=round(seconds))


class _Speed:
    """Tokens per second over the last few seconds of training."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._marks = [(time.perf_counter(), 0)]

    def after(self, tokens: int) -> float:
        self._marks.append((time.perf_counter(), self._marks[-1][1] + tokens))
        del self._marks[:-100]
        (start, before), (now, total) = self._marks[0], self._marks[-1]
        return (total - before) / max(now - start, 1e-9)
