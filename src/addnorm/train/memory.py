"""What the C library does with freed memory: training asks for the same again at every step."""

import ctypes
import sys

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def keep_freed_pages() -> None:
    """Let glibc keep what a step frees for the next step, until the process ends.

    Otherwise large tensors go back to the system, and each page of the next ones is zeroed and
    mapped anew: tens of thousands of page faults a step, an eighth of its time
    (`docs/speed.md`). Does nothing where the C library is another.
    """
    if sys.platform != "linux" or not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        return
    for largest in (2**30, 2**25):  # older versions take no more than the second
        if libc.mallopt(M_MMAP_THRESHOLD, largest):
            break
    libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
