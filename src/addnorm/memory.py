"""Memory of the machine and of this process, and tuning of the C library's allocator.

`addnorm.tuning.pages` also runs this file as a script, to measure both settings, so it imports
nothing else of AddNorm.
"""

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def keep_freed_pages() -> None:
    """Let glibc keep freed memory for reuse, until the process ends.

    Otherwise the memory of large tensors is returned to the system, and each page of the next ones
    is mapped and zeroed again: tens of thousands of page faults per training step, an eighth of its
    time (`docs/speed.md`). Does nothing with other C libraries.
    """
    if (mallopt := _mallopt()) is None:
        return
    if not mallopt(M_MMAP_THRESHOLD, 2**30):
        mallopt(M_MMAP_THRESHOLD, 2**25)  # the limit of older versions
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def give_tensors_pages_of_their_own() -> None:
    """Let glibc return the memory of each large tensor as soon as it is freed.

    Where weights are gathered for a moment, between others that stay, freed memory has gaps that
    nothing fits into: a process that holds half of a model took as much as one that holds all.
    Does nothing with other C libraries.
    """
    if (mallopt := _mallopt()) is not None:
        mallopt(M_MMAP_THRESHOLD, 2**18)


def return_freed_pages() -> None:
    """Return the memory that is free to the system, as after work that took much of it for a while.

    Does nothing with other C libraries than glibc.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


@contextmanager
def rare_collections() -> Generator[None]:
    """Look for unreachable cycles rarely while millions of objects are made that all stay.

    Python would go through all objects so far again and again, for up to half of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 200_000) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def pages_can_be_kept() -> bool:
    """Whether this is glibc, or another C library with its setting."""
    return _mallopt() is not None


def _mallopt() -> Callable[[int, int], int] | None:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "mallopt", None)


def total_memory() -> int | None:
    """The memory in bytes of this machine or its container; None if unknown."""
    limits: list[int] = []
    with suppress(ValueError, OSError, AttributeError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for name in ("memory.max", "memory/memory.limit_in_bytes"):  # cgroups v2 and v1
        with suppress(ValueError, OSError):
            limits.append(int((Path("/sys/fs/cgroup") / name).read_text(encoding="ascii")))
    return min(limits, default=None)


def resident_memory() -> int | None:
    """The physical memory of this process in bytes; None if unknown."""
    with suppress(ValueError, OSError, AttributeError):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return None


def peak_resident_memory() -> int | None:
    """The highest physical memory of this process so far, in bytes; None if unknown."""
    if sys.platform == "win32":
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


def allocate(keep: bool) -> None:
    """For each line of standard input, allocate, fill and free 16 MiB, and answer with a line."""
    if keep:
        keep_freed_pages()
    c = ctypes.CDLL(None)
    c.malloc.restype = ctypes.c_void_p
    for _ in sys.stdin:
        blocks = [ctypes.c_void_p(c.malloc(ctypes.c_size_t(2**20))) for _ in range(16)]
        for block in blocks:
            c.memset(block, 1, ctypes.c_size_t(2**20))
        for block in blocks:
            c.free(block)
        print(flush=True)


if __name__ == "__main__":
    allocate(keep=sys.argv[1:] == ["kept"])
