"""Where the cells of a study run: processes of this machine, or workers of a Dask cluster."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from addnorm.errors import InputError, Interrupted

TRIES = 3
"""How often a cell may lose its process before it is given up."""


@runtime_checkable
class Executor(Protocol):
    """Runs functions elsewhere, as those of `concurrent.futures` do."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]: ...


@contextmanager
def processes(n: int) -> Generator[Callable[[], Executor]]:
    """A maker of pools of `n` processes of this machine; all end with the block.

    When one of a pool is killed, for want of memory or by hand, the pool is of no use any more, and
    the maker gives another.
    """
    context = multiprocessing.get_context("spawn")
    made: list[ProcessPoolExecutor] = []

    def make() -> Executor:
        for broken in made:
            broken.shutdown(wait=False, cancel_futures=True)
        pool = _Pool(n, mp_context=context, initializer=_end_with_parent)
        made[:] = [pool]
        return pool

    try:
        yield make
    finally:
        for pool in made:
            pool.shutdown(wait=True, cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """Processes that Ctrl-C ends while they work, as it does the one that waits for them.

    One that were interrupted while it starts would show a traceback: a process starts with the
    signal blocked, which is delivered when its first job begins.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(_interruptible, fn, *args, **named)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


_interrupted: list[BaseException] = []


def _interruptible(fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function that Ctrl-C ends, in a process that begins no other after one."""
    if _interrupted:
        raise _interrupted[0]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        return fn(*args, **named)
    except (KeyboardInterrupt, Interrupted) as error:
        _interrupted.append(error)
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _end_with_parent() -> None:
    """End this process when the one that started it ends, for any reason."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def cluster(address: str) -> Generator[Callable[[], Executor]]:
    """A maker of executors on the Dask scheduler at an address such as `tcp://host:8786`.

    The cells of a lost worker are done again by another. Raises `InputError` where nobody answers,
    or dask is not installed.
    """
    try:
        from distributed import Client  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise InputError(
            "`scheduler` needs an extra package: pip install 'addnorm[cluster]'"
        ) from error
    try:
        client: Any = Client(address, timeout="10s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise InputError(f"`scheduler = {address}`: no scheduler answers there: {error}") from error
    with client:
        yield lambda: client.get_executor(pure=False, retries=TRIES)


def outcomes(
    make: Callable[[], Executor],
    work: Callable[[Any], Any],
    jobs: Sequence[Any],
    at_once: int,
    names: Sequence[str] = (),
) -> Iterator[tuple[int, Any]]:
    """Yield the number of each job and its result, as soon as it is there.

    At most `at_once` are handed out at a time, in the order of the jobs. A job whose process was
    killed is done again, `TRIES` times in all; the message for one that is given up has its name.
    Raises what a job raises, after which no more begin.
    """
    waiting, tries = list(enumerate(jobs))[::-1], [0] * len(jobs)
    running: dict[Future[Any], int] = {}
    executor = make()
    while waiting or running:
        while waiting and len(running) < at_once:
            index, job = waiting.pop()
            running[executor.submit(work, job)] = index
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        lost: list[int] = []
        for future in done:
            index = running.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                lost.append(index)
            else:
                yield index, _result(future, index, names)
        if lost:
            lost += running.values()  # all of a broken pool are lost
            running.clear()
            executor = make()
        for index in sorted(lost, reverse=True):
            tries[index] += 1
            if tries[index] == TRIES:
                raise _given_up(index, names)
            waiting.append((index, jobs[index]))


def _result(future: Future[Any], index: int, names: Sequence[str]) -> Any:
    """What a job gave; a person's mistake has the name of the job.

    Dask has tried again by itself when it says that a worker was killed.
    """
    error = future.exception()
    if type(error).__name__ == "KilledWorker":
        raise _given_up(index, names) from error
    if isinstance(error, InputError) and names:
        raise InputError(f"{names[index]}: {error}") from error
    return future.result()


def _given_up(index: int, names: Sequence[str]) -> InputError:
    name = names[index] if names else f"cell {index + 1}"
    return InputError(
        f"{name}: lost its process {TRIES} times, perhaps for want of memory: fewer processes take "
        "less. A script that calls this from Python does so below `if __name__ == '__main__':`"
    )
