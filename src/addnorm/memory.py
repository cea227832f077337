"""Memory: how much there is, and what the C library does with what is freed."""

import ctypes
import os
import sys
from contextlib import suppress
from pathlib import Path

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def keep_freed_pages() -> None:
    """Let glibc keep what is freed for the next step, until the process ends.

    Otherwise large tensors go back to the system, and each page of the next ones is mapped and
    zeroed anew: tens of thousands of page faults a step of training, an eighth of its time
    (`docs/speed.md`). Does nothing where the C library is another.
    """
    if sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return
    if not libc.mallopt(M_MMAP_THRESHOLD, 2**30):
        libc.mallopt(M_MMAP_THRESHOLD, 2**25)  # the most that older versions take
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def total_memory() -> int | None:
    """The bytes of memory of this machine, or of its container; None where nobody says."""
    found: list[int] = []
    with suppress(ValueError, OSError, AttributeError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):  # of either version of cgroups
        with suppress(ValueError, OSError):
            found.append(int((Path("/sys/fs/cgroup") / limit).read_text(encoding="ascii")))
    return min(found, default=None)
