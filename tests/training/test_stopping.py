"""Stop requests: the first is graceful and reported, the second takes effect at once."""

import signal
import threading

import pytest
from tests.training.tiny import interrupt

from addnorm.training.stopping import stop_requests


@pytest.fixture(autouse=True)
def _ctrl_c_interrupts() -> None:
    # What a shell starts in the background ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_the_first_is_told_once_and_the_second_interrupts() -> None:
    told: list[int] = []
    with stop_requests(lambda: told.append(1)) as stop:
        assert stop == []
        interrupt(signal.SIGTERM)
        assert (stop, told) == ([signal.SIGTERM], [1])
        interrupt()
        assert (len(stop), told) == (2, [1])
        with pytest.raises(KeyboardInterrupt):
            interrupt()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_another_thread_nothing_is_watched() -> None:
    before = signal.getsignal(signal.SIGINT)
    seen: list[object] = []

    def watch() -> None:
        with stop_requests() as stop:
            seen.append((stop, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join()
    assert seen == [([], before)]
