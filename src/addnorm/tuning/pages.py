"""Compares keeping freed memory with returning it to the system, each in its own process.

A setting of `mallopt` cannot be undone, so this process measures neither of them. The others do not
import torch, which takes a second; they allocate, fill and free as much as a step of a small model.
"""

import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from threading import Timer

from addnorm import machine

BOTH = ("returned", "kept")

SECONDS = 4.0
"""Seconds after which a process that does not answer is ended."""


class NoAnswerError(Exception):
    """The process that was to allocate memory has ended."""


@contextmanager
def allocating() -> Generator[Mapping[str, Callable[[], object]]]:
    """Yield two works that allocate and free memory: one returns it to the system, one keeps it.

    There are none where pages cannot be kept, or no Python can be started. A work whose process has
    ended raises `NoAnswerError`.
    """
    with ExitStack() as stack:
        works: dict[str, Callable[[], object]] = {}
        if machine.pages_can_be_kept() and sys.executable and not hasattr(sys, "frozen"):
            with suppress(OSError):  # no more processes for this user
                works = {name: partial(_ask, stack.enter_context(_process(name))) for name in BOTH}
        yield works


@contextmanager
def _process(setting: str) -> Generator["subprocess.Popen[bytes]"]:
    words = [sys.executable, "-I", "-S", machine.__file__, setting]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(words, bufsize=0, stdin=pipe, stdout=pipe, stderr=nowhere) as process:
        timer = Timer(SECONDS, process.kill)
        timer.start()
        try:
            yield process
        finally:
            timer.cancel()
            process.kill()


def _ask(process: "subprocess.Popen[bytes]") -> None:
    """Ask a process to allocate and free once."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(b"\n")
        answer = process.stdout.readline()
    except OSError:
        answer = b""
    if not answer:
        raise NoAnswerError
