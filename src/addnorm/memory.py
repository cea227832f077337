"""What the C library does with freed memory: a step of a loop asks for the same again."""

import ctypes
import sys

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
