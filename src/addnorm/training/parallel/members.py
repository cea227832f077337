"""Which processes train together, and which of them has ended."""

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
        """The member that `text` describes."""
        pid, host = text.split(" ", 1)
        return cls(rank, int(pid), host)

    @property
    def text(self) -> str:
        """A description that `read` understands."""
        return f"{self.pid} {self.host}"

    def has_ended(self) -> bool:
        """Whether it has ended; of another host's process this is not known."""
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
    """The first that is seen to have ended within a few seconds; None if there is none."""
    end = time.monotonic() + WAIT
    while True:
        for member in members:
            if member.has_ended():
                return member
        if time.monotonic() >= end:
            return None
        time.sleep(0.05)
