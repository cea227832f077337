"""Implementations: what runs a benchmark, and the process of its own in which it does so."""

import ctypes
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal

CeilingName = Literal["f32", "bf16", "int8", "read"]
"""What bounds an implementation: the rate of matrix products in a type, or of reading memory."""


@dataclass(frozen=True)
class Round:
    """One round: `units` of work done in so many seconds, and what else was seen."""

    seconds: float
    units: float
    details: Mapping[str, float] = field(default_factory=dict[str, float])


Run = Callable[[], Round]
"""Does one round."""


@dataclass(frozen=True)
class Cost:
    """What a unit of work takes of the machine: FLOP, or bytes where reading is the ceiling."""

    ceiling: CeilingName
    per_unit: float


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """A way to run a benchmark: `build` makes it, given the folder of what the benchmark prepared.

    `build` is sent to another process, so it is a function of a module or a `partial` of one. A
    first round that does not count warms it up, unless one takes too long for that.
    """

    name: str
    build: Callable[[Path], Run]
    needs: tuple[str, ...] = ()
    cost: Cost | None = None
    warm_up: bool = True

    @property
    def missing(self) -> str:
        """The packages that it needs and that are not installed."""
        return ", ".join(name for name in self.needs if importlib.util.find_spec(name) is None)


class Failed(Exception):
    """An implementation raised, died or went silent; the message is one line."""


class Worker:
    """A process that builds an implementation, warms it up, and then does one round whenever asked.

    OpenMP pools of different libraries in one process slow each other down, so each has its own.
    It starts with its first round, so that nothing else runs while it is made; and it ends with
    this process, whichever way that ends: its end of the pipe then closes.
    """

    def __init__(
        self, implementation: Implementation, folder: Path, *, patience: float = 900.0
    ) -> None:
        context = get_context("spawn")
        self._pipe, self._theirs = context.Pipe()
        self._patience = patience
        self._log = folder / f"{id(self)}.log"
        serve = (implementation.build, implementation.warm_up, folder, self._theirs, self._log)
        self._process = context.Process(target=_serve, args=serve, daemon=True)

    def round(self) -> Round:
        """One round. Raises `Failed`."""
        if self._process.pid is None:
            self._process.start()
            self._theirs.close()  # so that the pipe ends when the process does
        try:
            self._pipe.send(True)
            if not self._pipe.poll(self._patience):
                raise Failed(f"gave no answer within {self._patience:g} s")
            answer: Round | str = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(5)
            raise Failed(self._last_words()) from error
        if isinstance(answer, str):
            raise Failed(answer)
        return answer

    def close(self) -> None:
        """End the process: it ends by itself when the pipe does, unless it is at work."""
        self._pipe.close()
        if self._process.pid is not None:
            self._process.join(1)
            self._process.terminate()
            self._process.join()

    def _last_words(self) -> str:
        output = self._log.read_text("utf-8", "replace").split("\n") if self._log.exists() else []
        words = [line.strip() for line in output if line.strip()]
        return ": ".join([f"ended with exit status {self._process.exitcode}", *words[-1:]])


def _serve(
    build: Callable[[Path], Run], warm_up: bool, folder: Path, pipe: Connection, log_file: Path
) -> None:
    """What the process does: perhaps a first round to warm up, then one for every message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    with log_file.open("w", encoding="utf-8") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    run: Run | None = None
    try:
        while pipe.recv():
            if run is None:
                run = build(folder)
                _ = run() if warm_up else None
            done = run()
            pipe.send(replace(done, details={"peak_mib": peak_mib(), **done.details}))
    except EOFError:
        return
    except Exception as error:
        pipe.send(one_line(error))


def one_line(error: BaseException) -> str:
    """An exception in one line: its type and the first line of what it says."""
    message = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def peak_mib() -> float:
    """The most memory that this process has held at once, in MiB.

    Linux counts a parent's memory in `ru_maxrss` of a new process, so its own record comes first.
    """
    return _status("VmHWM") or _maxrss()


def held_mib() -> float:
    """The memory that this process holds now, in MiB; its peak where the system does not say.

    What is free already and glibc keeps for later does not count: how much that is depends on luck.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS") or _maxrss()


def _status(name: str) -> float:
    try:
        lines = Path("/proc/self/status").read_text("utf-8").split("\n")
    except OSError:
        return 0.0
    return next((int(x.split()[1]) / 1024 for x in lines if x.startswith(f"{name}:")), 0.0)


def _maxrss() -> float:
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 1024


def cores() -> int:
    """The cores that this process may use; every implementation has as many threads."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(usable) or os.cpu_count() or 1


def timed(
    step: Callable[[], object], units: float, *, at_least: float = 1.0, steps: int = 1
) -> Run:
    """Rounds that repeat a step worth `units`: `steps` times, and until `at_least` seconds passed.

    What is compiled is sometimes compiled anew at its second step, so warming up takes several.
    """

    def run() -> Round:
        start, times, passed = time.perf_counter(), 0, 0.0
        while times < steps or passed < at_least:
            step()
            times, passed = times + 1, time.perf_counter() - start
        return Round(passed, times * units)

    return run
