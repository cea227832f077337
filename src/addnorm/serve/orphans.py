"""Ends an engine process whose web server has died, even during a computation."""

import os
import select
import socket
from threading import Thread
from time import sleep

GRACE = 1.0
"""Seconds that an engine has to end by itself after its socket has ended."""


def end_with(connection: socket.socket) -> None:
    """End this process soon after the other side of the socket is closed."""
    Thread(target=_wait_and_end, args=(connection.fileno(),), daemon=True).start()


def _wait_and_end(connection: int) -> None:
    poll = select.poll()
    poll.register(connection, 0)  # a hang-up is always reported, whatever is unread
    poll.poll()
    sleep(GRACE)
    os._exit(1)
