"""Ctrl-C while one operator computes: Python itself would wait for its end, for minutes if long."""

import os
import signal
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Thread, current_thread, main_thread
from types import FrameType

PATIENCE = 1.0
"""Seconds that an operator has to end by itself."""

INTERRUPTED = 130
"""The exit status of a process that Ctrl-C has stopped."""


@contextmanager
def interruptible() -> Generator[None]:
    """Let Ctrl-C end the process even where Python cannot raise `KeyboardInterrupt` soon.

    For commands that have nothing to save: what they have written is flushed line by line. Where
    Ctrl-C is handled otherwise, or ignored as by `nohup` and in the background, that stays.
    """
    handled = signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    if handled or current_thread() is not main_thread() or os.name != "posix":
        yield
        return
    raised = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal raised
        raised += 1
        signal.default_int_handler(number, frame)

    def watch() -> None:
        sent = 0
        while number := reader.recv(1):
            sent += number[0] == signal.SIGINT
            end = time.monotonic() + PATIENCE
            while raised < sent and time.monotonic() < end:
                time.sleep(0.02)
            if raised < sent:
                os._exit(INTERRUPTED)

    reader, writer = socket.socketpair()
    with reader, writer:
        writer.setblocking(False)
        before = signal.signal(signal.SIGINT, interrupt)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        thread = Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, before)
            writer.shutdown(socket.SHUT_WR)
            thread.join()
