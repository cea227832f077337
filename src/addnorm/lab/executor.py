"""Running cells in processes of this machine or on a Dask cluster, with a progress bar.

Pools import this file before their threads are set, so it imports no torch.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from rich.console import Console

from addnorm.errors import InputError, Interrupted, optional
from addnorm.long_work import counted_work
from addnorm.machine import cores

TRIES = 3
"""How often a cell may lose its process before the study ends with an error."""

AT_ONCE = 64
"""The number of cells that a cluster gets at once, to distribute them to its workers."""

Watch = Callable[[int, int, str], None]
"""Called with the number of finished cells, the number of all, and the name of the last one."""


def workers(processes: int | None, threads: int = 1, scheduler: str | None = None) -> int:
    """Return how many cells to train at once, with this many threads each.

    Raises `InputError` for more threads than there are cores.
    """
    for name, n in (("threads", threads), ("processes", processes)):
        if n is not None and n < 1:
            raise InputError(f"`{name} = {n}`: must be at least 1")
    if scheduler is not None:
        return processes or AT_ONCE
    n_cores = cores()
    most = max(1, n_cores // threads)
    if threads > n_cores:
        raise InputError(f"`threads = {threads}`: this machine has {n_cores} cores")
    if processes is not None and processes > most:
        each = f" of {threads} threads each" if threads > 1 else ""
        raise InputError(
            f"`processes = {processes}`{each}: this machine has {n_cores} cores, so at most {most}"
        )
    return processes or most


@contextmanager
def progress_bar(console: Console, total: int) -> Generator[Watch]:
    """Show a bar of the finished cells and the remaining time while cells run.

    Without a terminal, prints lines at growing intervals. Where Ctrl-C stops them, prints how to
    resume and raises `KeyboardInterrupt`.
    """
    try:
        with counted_work(console, "starting", total) as advance:
            yield lambda done, _, name: advance(done, name)
    except (KeyboardInterrupt, Interrupted):
        console.out("stopped: everything so far is saved, and the same command resumes it")
        raise KeyboardInterrupt from None


@runtime_checkable
class Executor(Protocol):
    """An object that runs functions in other processes, like `concurrent.futures` executors."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]: ...


@contextmanager
def processes(n: int, threads: int = 1) -> Generator[Callable[[], Executor]]:
    """Yield a function that makes a pool of `n` processes, which end with this context.

    Each process has `threads` threads. When one is killed, for want of memory or by a user, its
    pool can no longer be used, and the function makes another.
    """
    context = multiprocessing.get_context("spawn")
    pools: list[ProcessPoolExecutor] = []

    def make() -> Executor:
        for broken in pools:
            broken.shutdown(wait=False, cancel_futures=True)
        pool = _Pool(n, mp_context=context, initializer=_begin, initargs=(threads,))
        pools[:] = [pool]
        return pool

    try:
        yield make
    finally:
        for pool in pools:
            pool.shutdown(wait=True, cancel_futures=True)


class _Pool(ProcessPoolExecutor):
    """A pool whose processes Ctrl-C ends during their work, together with the waiting process.

    A process interrupted while it starts would show a traceback, so each starts with the signal
    blocked; it is delivered when the first job begins.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **named: Any) -> Future[Any]:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return super().submit(_interruptible, fn, *args, **named)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


_interrupted: list[BaseException] = []


def _interruptible(fn: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Call a function that Ctrl-C can end; afterwards this process starts no other."""
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


def _begin(threads: int) -> None:
    """Set the thread numbers of libraries imported later, and end this process with its parent."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def cluster(address: str) -> Generator[Callable[[], Executor]]:
    """Yield a function that makes executors on a Dask scheduler, such as `tcp://host:8786`.

    Another worker repeats the cells of a lost one. Raises `InputError` if no scheduler answers, or
    dask is not installed.
    """
    distributed = optional("distributed", "cluster", "`scheduler`")
    try:
        client: Any = distributed.Client(address, timeout="10s", set_as_default=False)
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
    """Yield the number and the result of each job, in the order of completion.

    At most `at_once` run at a time, and they start in the order of the jobs. A job whose process
    was killed is started `TRIES` times in all, and then named in an `InputError`. Raises what a job
    raises, after which no other starts.
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
                raise _lost(index, names)
            waiting.append((index, jobs[index]))


def _result(future: Future[Any], index: int, names: Sequence[str]) -> Any:
    """Return the result of a job; an `InputError` gets the job's name.

    When Dask reports a killed worker, it has already repeated the job.
    """
    error = future.exception()
    if type(error).__name__ == "KilledWorker":
        raise _lost(index, names) from error
    if isinstance(error, InputError) and names:
        raise InputError(f"{names[index]}: {error}") from error
    return future.result()


def _lost(index: int, names: Sequence[str]) -> InputError:
    name = names[index] if names else f"cell {index + 1}"
    return InputError(
        f"{name}: lost its process {TRIES} times, perhaps because memory is short: fewer processes "
        "take less. A script that calls this from Python does so below `if __name__ == '__main__':`"
    )
