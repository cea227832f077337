"""A lock on a run folder: one process at a time writes there."""

import json
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from addnorm.errors import InputError

LOCK = ".lock"
"""The file of a run folder that says who writes there; the system unlocks it when they end."""


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold the lock of a run folder, which is made if need be, from before the first byte of it.

    Within a process it may be taken again. A process that ends, however it does, holds it no
    longer. Raises `InputError` naming the process and the host that hold it.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file: choose another --out")
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, is_singleton=True, thread_local=False)
    try:
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InputError(
            f"{folder}: in use: {_holder(folder / LOCK)} writes there. Wait for it to end, or "
            "choose another --out"
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
            with suppress(OSError):  # it stays, unless nothing was written
                folder.rmdir()


def _holder(file: Path) -> str:
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
        return f"process {facts['pid']} on {facts['host']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
