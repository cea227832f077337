"""The processes that train together, and whether one of them has ended."""

import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

WAIT = 5.0
"""Seconds in which a process that has ended is seen to be gone."""


@dataclass(frozen=True)
class Member:
    """One of the processes that train together."""

    rank: int
    pid: int
    host: str

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} on {self.host})"

    @classmethod
    def here(cls, rank: int) -> "Member":
        """This process."""
        return cls(rank, os.getpid(), socket.gethostname())

    @classmethod
    def read(cls, rank: int, text: str) -> "Member":
        """Parse a member from the `text` of its description."""
        pid, host = text.split(" ", 1)
        return cls(rank, int(pid), host)

    @property
    def text(self) -> str:
        """A description that `read` can parse."""
        return f"{self.pid} {self.host}"

    def has_ended(self) -> bool:
        """Whether the process has ended; always false for a process of another host."""
        if self.host != socket.gethostname():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        return False


def ended(members: Sequence[Member]) -> Member | None:
    """The first process seen to end within a few seconds; None if there is none."""
    end = time.monotonic() + WAIT
    while True:
        for member in members:
            if member.has_ended():
                return member
        if time.monotonic() >= end:
            return None
        time.sleep(0.05)
