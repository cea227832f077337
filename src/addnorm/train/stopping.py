"""Requests to stop: Ctrl-C and SIGTERM end a step, and a second one ends it at once."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def stop_requests(first: Callable[[], None] = lambda: None) -> Generator[list[int]]:
    """A list that fills when Ctrl-C or SIGTERM asks to stop; a second request stops at once.

    `first` is called at the first request, so that somebody hears of it.
    """
    requests: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield requests  # only the main thread may watch signals
        return

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, _: object) -> None:
        requests.append(number)
        signal.signal(number, before[signal.Signals(number)])
        if len(requests) == 1:
            first()

    try:
        for number in before:
            signal.signal(number, note)
        yield requests
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
