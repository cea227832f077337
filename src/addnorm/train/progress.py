"""The progress bar of a training run: loss, tokens per second, time left."""

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar:
    """Shows each step as it comes; a context manager around `Trainer.fit`."""

    def __init__(self, console: Console) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("loss {task.fields[loss]:.3f} · {task.fields[speed]:,.0f} tokens/s ·"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
        )
        self._task = self._bar.add_task("training", total=None, loss=float("nan"), speed=0.0)
        self._speed = _Speed()

    def __enter__(self) -> "ProgressBar":
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__(None, None, None)

    def stepped(self, step: int, total: int, loss: float, tokens: int) -> None:
        """Move on by one step."""
        speed = self._speed.after(tokens)
        self._bar.update(self._task, completed=step, total=total, loss=loss, speed=speed)

    def validated(self, step: int, scores: dict[str, float]) -> None:
        """Print the scores above the bar."""
        figures = " · ".join(f"{name} {value:.4g}" for name, value in scores.items())
        self._bar.console.print(f"step {step:>6} · valid {figures}")
        self._speed.restart()


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
