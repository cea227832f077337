"""A lock on a run folder, so that only one process writes to it."""

import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from addnorm.errors import InputError

LOCK = ".lock"
"""The lock file, which names its owner; the system releases the lock when the process ends."""


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Create a run folder if needed, and hold its lock.

    The lock is reentrant within a process and is released when the process ends for any reason.
    Raises `InputError` naming the process and host that hold it.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file: choose another `out`")
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, is_singleton=True, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InputError(
            f"{folder}: in use: {_holder(folder / LOCK)} writes there. Wait for it to end, or "
            "choose another `out`"
        ) from error
    try:
        facts = {"pid": os.getpid(), "host": socket.gethostname()}
        (folder / LOCK).write_text(json.dumps(facts), encoding="utf-8")
        yield
    finally:
        last = lock.lock_counter == 1
        if last:
            (folder / LOCK).unlink(missing_ok=True)
        lock.release()
        if last and new:
            with suppress(OSError):  # remove the folder only if it is empty
                folder.rmdir()


@contextmanager
def locked_empty(out: Path) -> Generator[None]:
    """Hold the lock of a run folder that must be empty; create it if needed.

    Raises `InputError` if anything but a lock, or what a crash left, is in it.
    """
    _check_empty(out)
    with locked(out):
        _check_empty(out)
        yield


def _check_empty(out: Path) -> None:
    ours = {LOCK, ".partial"}
    if out.exists() and (not out.is_dir() or {file.name for file in out.iterdir()} - ours):
        raise InputError(f"{out}: something is there already: choose another `out`")


def in_use(folder: Path) -> str | None:
    """Return the process and host that write to a run folder now; None if there are none."""
    if not (folder / LOCK).is_file():
        return None
    lock = FileLock(folder / LOCK, thread_local=False)
    try:
        with lock.acquire(blocking=False):
            return None
    except Timeout:
        return _holder(folder / LOCK)
    except OSError:  # where nothing can be locked, nobody writes
        return None


def _holder(file: Path) -> str:
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        return f"process {facts['pid']} on {facts['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
