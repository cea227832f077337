"""Worker processes that encode or sign texts and return an array for each, in order."""

import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol, runtime_checkable

import numpy as np

from addnorm.data.tokenizing.pieces import Ids
from addnorm.errors import InputError

AHEAD = 4
"""The most batches that each worker may be ahead of the next one in order."""


Encode = Callable[[Sequence[str]], Sequence[Ids]]
"""A function that computes an array of integers for each text, such as its ids."""


@runtime_checkable
class Encoder(Protocol):
    """Encodes batches of texts."""

    def encoded(self, batches: Iterator[Sequence[str]]) -> Iterator[Sequence[Ids]]:
        """Yield the arrays of the texts of each batch, in the order of the batches."""
        ...


class Workers:
    """Processes that encode batches of texts, one thread each; results equal those of one."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        self._pipes = pipes

    def encoded(self, batches: Iterator[Sequence[str]]) -> Iterator[Sequence[Ids]]:
        """Yield the arrays of the texts of each batch, in the order of the batches.

        Whichever worker is ready takes the next batch. Raises `InputError` if one of them ends.
        """
        idle, busy = list(self._pipes), dict[Connection, int]()
        done = dict[int, list[Ids]]()
        sent = given = 0
        batch = next(batches, None)
        try:
            while batch is not None or busy:
                while batch is not None and idle and sent < given + AHEAD * len(self._pipes):
                    pipe = idle.pop()
                    pipe.send(batch)
                    busy[pipe] = sent
                    sent, batch = sent + 1, next(batches, None)
                while given in done:
                    yield done.pop(given)
                    given += 1
                for pipe in wait(list(busy)):
                    assert isinstance(pipe, Connection)
                    done[busy.pop(pipe)] = split(*pipe.recv())
                    idle.append(pipe)
            while given in done:
                yield done.pop(given)
                given += 1
        except (EOFError, ConnectionError) as error:
            raise InputError(
                "a process that encodes texts has ended, perhaps for want of memory: the same "
                "command resumes, and takes less with fewer workers"
            ) from error


def split(ids: Ids, lengths: Ids) -> list[Ids]:
    """Divide ids into rows of these lengths."""
    ends = np.cumsum(lengths).tolist()
    return [ids[start:stop] for start, stop in pairwise([0, *ends])]


@contextmanager
def workers(n: int, encoder: Callable[[], Encode]) -> Generator[Workers]:
    """In this context, processes run that encode with the function returned by `encoder`.

    They also end when this process does, for any reason, since that closes their pipes.
    """
    context = get_context("spawn")
    pipes: list[Connection] = []
    processes: list[Any] = []
    try:
        for _ in range(n):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, encoder), daemon=True)
            process.start()
            theirs.close()
            pipes.append(ours)
            processes.append(process)
        yield Workers(pipes)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.terminate()
            process.join()


def _serve(pipe: Connection, encoder: Callable[[], Encode]) -> None:
    """The main loop of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this
    encode = encoder()
    try:
        while True:
            rows = encode(pipe.recv())
            lengths = np.array([len(row) for row in rows], np.int64)
            pipe.send((np.concatenate(rows), lengths))
    except (EOFError, ConnectionError):
        return
