"""Implementations of a benchmark, each running in its own process."""

import ctypes
import importlib.util
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal

from addnorm.compiler import separate_caches

CeilingName = Literal["f32", "bf16", "int8", "read"]
"""The machine rate that limits an implementation: matrix products in a dtype, or memory reads."""


@dataclass(frozen=True)
class Round:
    """One round: `units` of work done in `seconds`, and other measurements."""

    seconds: float
    units: float
    details: Mapping[str, float] = field(default_factory=dict[str, float])


Run = Callable[[], Round]
"""A function that runs one round."""


@dataclass(frozen=True)
class Cost:
    """The cost of a unit of work: FLOP, or bytes if memory bandwidth is the limit."""

    ceiling: CeilingName
    per_unit: float


@dataclass(frozen=True, kw_only=True)
class Implementation:
    """An implementation of a benchmark; `build` takes the folder of prepared data.

    `build` is sent to another process, so it must be a module-level function or a `partial` of one.
    An uncounted first round serves as warm-up, unless disabled because it takes too long.
    """

    name: str
    build: Callable[[Path], Run]
    needs: tuple[str, ...] = ()
    cost: Cost | None = None
    warm_up: bool = True

    @property
    def missing(self) -> str:
        """The required packages that are not installed."""
        return ", ".join(name for name in self.needs if importlib.util.find_spec(name) is None)


def implementation(
    name: str,
    build: Callable[..., Run],
    *needs: str,
    cost: Cost | None = None,
    warm_up: bool = True,
    **options: Any,
) -> Implementation:
    """Return an implementation that `build` builds with these options."""
    built = partial(build, **options)
    return Implementation(name=name, build=built, needs=needs, cost=cost, warm_up=warm_up)


class Failed(Exception):
    """An implementation failed, died or timed out; the message is one line."""


class Worker:
    """A process that builds an implementation, warms it up, and runs rounds on request.

    OpenMP pools of different libraries in one process slow each other down, so each library has its
    own process. It starts with its first round, so that nothing else runs during the build, and
    ends when this process ends for any reason, which closes the pipe.
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
        """Run one round. Raises `Failed`."""
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
            raise Failed(self._last_line()) from error
        if isinstance(answer, str):
            raise Failed(answer)
        return answer

    def close(self) -> None:
        """End the process, which ends by itself once the pipe is closed and it is idle."""
        self._pipe.close()
        if self._process.pid is not None:
            self._process.join(1)
            self._process.terminate()
            self._process.join()

    def _last_line(self) -> str:
        output = self._log.read_text("utf-8", "replace").split("\n") if self._log.exists() else []
        lines = [line.strip() for line in output if line.strip()]
        return ": ".join([f"ended with exit status {self._process.exitcode}", *lines[-1:]])


def _serve(
    build: Callable[[Path], Run], warm_up: bool, folder: Path, pipe: Connection, log_file: Path
) -> None:
    """The main loop of the process: an optional warm-up round, then one round per message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    with log_file.open("w", encoding="utf-8") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    separate_caches()  # some peers compile by themselves
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
    """Return an exception in one line: its type and the first line of its message."""
    message = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def peak_mib() -> float:
    """Return the peak memory of this process, in MiB.

    Linux counts a parent's memory in `ru_maxrss` of a new process, so its own record comes first.
    """
    return _status("VmHWM") or _maxrss()


def held_mib() -> float:
    """Return the current memory of this process in MiB; its peak if unknown.

    Freed memory that glibc keeps is released first, since its amount is random.
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


def _maxrss(whose: int = resource.RUSAGE_SELF) -> float:
    most = resource.getrusage(whose).ru_maxrss
    return most / 2**20 if sys.platform == "darwin" else most / 1024


def timed(
    step: Callable[[], object], units: float, *, at_least: float = 1.0, steps: int = 1
) -> Run:
    """Return rounds that repeat a step of `units`, at least `steps` times and `at_least` seconds.

    Compiled code is sometimes recompiled at the second step, so warm-up takes several steps.
    """

    def run() -> Round:
        start, times, passed = time.perf_counter(), 0, 0.0
        while times < steps or passed < at_least:
            step()
            times, passed = times + 1, time.perf_counter() - start
        return Round(passed, times * units)

    return run


def started(_: Path, *, statement: str) -> Run:
    """Return rounds that each run a statement in a new Python process.

    This file imports no torch, because the peak memory of a new process includes its parent's.
    """
    command = [sys.executable, "-c", statement]

    def run() -> Round:
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        seconds = time.perf_counter() - start
        return Round(seconds, 1, {"peak_mib": _maxrss(resource.RUSAGE_CHILDREN)})

    return run
