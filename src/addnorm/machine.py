"""This machine: its memory, the C library's allocator, the processor's name and its cores.

`addnorm.tuning.pages` also runs this file as a script, to measure both settings, so it imports
nothing else of AddNorm.
"""

import ctypes
import gc
import mmap
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

TRANSPARENT_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def keep_freed_pages() -> None:
    """Let glibc keep freed memory for reuse until the process ends.

    Otherwise the memory of large tensors is returned to the system, and each page of the next ones
    is mapped and zeroed again: tens of thousands of page faults per training step, an eighth of its
    time (`docs/speed.md`). Does nothing with other C libraries.
    """
    if (mallopt := _mallopt()) is None:
        return
    if not mallopt(M_MMAP_THRESHOLD, 2**30):
        mallopt(M_MMAP_THRESHOLD, 2**25)  # the limit of older versions
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def keep_small_freed_pages() -> None:
    """Let glibc keep freed memory for reuse, except that of tensors of 16 MiB and more.

    Where weights are gathered for a moment, between others that stay, freed memory has gaps that
    nothing fits into: a process that holds half of a model took as much as one that holds all.
    Smaller tensors leave small gaps; to return their memory too takes a quarter of a training step,
    in page faults (`docs/speed.md`). Does nothing with other C libraries.
    """
    if (mallopt := _mallopt()) is not None:
        mallopt(M_MMAP_THRESHOLD, 2**24)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def return_freed_pages() -> None:
    """Return free memory to the system, such as after work that needed much of it.

    Does nothing with other C libraries than glibc.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


HUGE_PAGE = 2**21
"""The bytes of a huge page of most processors."""


def huge_pages(size: int) -> tuple[mmap.mmap, int] | None:
    """Memory for `size` bytes from an offset, on huge pages; None where the system has none.

    A processor then looks up the address of a page 512 times less often.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    try:
        if advice is None or "[never]" in TRANSPARENT_HUGE_PAGES.read_text(encoding="ascii"):
            return None
        memory = mmap.mmap(-1, size + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(advice)
    except OSError:  # no such file, or no more memory for this process
        return None
    return memory, -_address(memory) % HUGE_PAGE


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@contextmanager
def rare_collections() -> Generator[None]:
    """In this context, collect garbage rarely, while millions of lasting objects are made.

    Python would go through all objects so far again and again, for up to half of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], 200_000) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def pages_can_be_kept() -> bool:
    """Whether the C library is glibc, or has its setting for freed memory."""
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


def available_memory() -> int:
    """The memory in bytes that programs can still take; 0 if unknown."""
    with suppress(ValueError, OSError, IndexError):
        of_machine = Path("/proc/meminfo").read_text(encoding="ascii")
        kibibytes = int(of_machine.split("MemAvailable:")[1].split()[0])
        total = total_memory()
        return kibibytes * 1024 if total is None else min(kibibytes * 1024, total)
    return 0


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
    """For each line of standard input, allocate, fill and free 16 MiB, then print a line."""
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


LIMITS = (
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "ATEN_CPU_CAPABILITY",
    "ADDNORM_OPERATORS",
)
"""The variables of the environment that keep libraries from instructions a processor has."""


CPUINFO = Path("/proc/cpuinfo")

OF_ARM = ("implementer", "architecture", "part")
"""The fields by which Linux identifies an ARM processor, without a name: `CPU part : 0xd0c`."""

VECTORS = ("amx_tile", "avx512_bf16", "avx512f", "avx2", "sve2", "sve", "asimd")
"""Vector instructions, the widest first."""


def processor() -> str:
    """The processor's name, its widest vector instructions, and the limits on their use."""
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    if (text := _cpuinfo()) is None:
        return ", ".join([_brand() or platform.processor() or platform.machine(), *limits])
    listed = instructions().split()
    vectors = [name for name in VECTORS if name in listed][:1]
    return ", ".join([_name_in(text) or platform.machine(), *vectors, *limits])


def instructions() -> str:
    """All instruction sets that Linux lists for the processor; empty elsewhere."""
    flags = re.search(r"^(?:flags|Features)\s*: (.*)$", _cpuinfo() or "", re.MULTILINE)
    return flags[1] if flags else ""


def _cpuinfo() -> str | None:
    try:
        return CPUINFO.read_text("utf-8", errors="replace")
    except OSError:
        return None


def _name_in(cpuinfo: str) -> str:
    """The processor's name, or the ids of its kinds of cores; empty if neither is known."""
    if name := re.search(r"^model name\s*: (.*)$", cpuinfo, re.MULTILINE):
        return name[1]
    kinds = [
        f"{field} {' '.join(sorted({*values}))}"
        for field in OF_ARM
        if (values := re.findall(rf"^CPU {field}\s*: (\S+)$", cpuinfo, re.MULTILINE))
    ]
    return " ".join([platform.machine(), *kinds]) if kinds else ""


@cache
def _brand() -> str:
    """The processor's name on macOS; empty on other systems."""
    if sys.platform != "darwin":
        return ""
    words = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        return subprocess.run(words, capture_output=True, text=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def cores() -> int:
    """The number of cores available to this process."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(usable) or os.cpu_count() or 1


def file_name(text: str) -> str:
    """A text as a part of a file's name: `amd-epyc-avx512_bf16`."""
    return re.sub(r"[^A-Za-z0-9.+=_]+", "-", text).strip("-").lower()


if __name__ == "__main__":
    allocate(keep=sys.argv[1:] == ["kept"])
