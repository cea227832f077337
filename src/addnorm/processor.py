"""This machine's processor: its name, for what is measured on it, and its cores."""

import os
import platform
import re
from pathlib import Path

LIMITS = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "ATEN_CPU_CAPABILITY")
"""The variables of the environment that keep libraries from instructions a processor has."""


def processor() -> str:
    """The processor's name, with its widest vector instructions and what keeps from using them."""
    limits = [f"{name}={os.environ[name]}" for name in LIMITS if name in os.environ]
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return ", ".join([platform.processor() or platform.machine(), *limits])
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    known = set(flags[1].split()) if flags else set[str]()
    vectors = [x for x in ("amx_tile", "avx512_bf16", "avx512f", "avx2") if x in known][:1]
    return ", ".join([name[1] if name else _arm(text), *vectors, *limits])


def _arm(text: str) -> str:
    """The name of a processor that has numbers in place of one: `aarch64 0x41 0xd0c`."""
    parts = [
        re.search(rf"^CPU {field}\s*: (\S+)$", text, re.MULTILINE)
        for field in ("implementer", "part")
    ]
    return " ".join([platform.machine(), *(found[1] for found in parts if found)])


def cores() -> int:
    """The number of cores available to this process."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return len(usable) or os.cpu_count() or 1


def file_name(text: str) -> str:
    """A text as a part of a file's name: `amd-epyc-avx512_bf16`."""
    return re.sub(r"[^A-Za-z0-9.+=_]+", "-", text).strip("-").lower()
