"""This machine's processor: its name, which identifies measurements, and its cores."""

import os
import platform
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

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
    """The processor's name, or the numbers of each kind of its cores; empty without either."""
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
    """The processor's name on macOS; empty elsewhere."""
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
