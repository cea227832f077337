"""Graceful shutdown: Ctrl-C or SIGTERM stops after the current step, a second one immediately."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def stop_requests(first: Callable[[], None] = lambda: None) -> Generator[list[int]]:
    """Yield a list that gets an entry on Ctrl-C or SIGTERM; a second signal stops immediately.

    `first` is called at the first signal, to notify the user.
    """
    requests: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield requests  # only the main thread can handle signals
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
