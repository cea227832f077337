"""The machine's peak rates: matrix products in each dtype, and memory bandwidth."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from addnorm.bench.implementation import Implementation, Round, Run
from addnorm.machine import cores
from addnorm.nn.linear import multiplies_bfloat16

WIDTHS = (1024, 2048)
"""Matrix sizes that fit in the caches, and that do not."""
EMULATED = (128,)
"""For dtypes without products in hardware, which would take minutes."""
READ_MIB = 512
"""The MiB that are read, far more than any cache holds."""


def ceilings(
    _: Path,
    *,
    widths: tuple[int, ...] = WIDTHS,
    read_mib: int = READ_MIB,
    for_seconds: float = 0.15,
) -> Run:
    """Return rounds with the details `f32`, `bf16` and `int8` in FLOP/s, and `read` in bytes/s."""
    torch.set_num_threads(cores())
    kinds = {"f32": ("f32", "f32 onednn"), "bf16": ("bf16",), "int8": ("int8",)}
    products = {
        name: [(product(kind, width), width) for kind in ways for width in _sizes(name, widths)]
        for name, ways in kinds.items()
    }
    memory = torch.ones(read_mib * 2**18)

    def run() -> Round:
        start = time.perf_counter()
        rates = {
            name: max(rate(step, 2.0 * n**3, for_seconds) for step, n in steps)
            for name, steps in products.items()
        }
        rates["read"] = rate(memory.sum, 4.0 * memory.numel(), for_seconds)
        return Round(time.perf_counter() - start, 1, rates)

    return run


def _sizes(name: str, widths: tuple[int, ...]) -> tuple[int, ...]:
    return widths if name == "f32" or multiplies_bfloat16 else EMULATED


def product(kind: str, width: int) -> Callable[[], object]:
    """Return a product of two square matrices; int8 is accumulated in int32.

    torch uses MKL for float32, which is slower on processors of other makers; oneDNN, also included
    in torch, is not. The machine's ceiling is the better of both.
    """
    a, b = torch.randn(2, width, width)
    if kind == "f32 onednn":
        linear: Any = torch.ops.mkldnn._linear_pointwise  # pyright: ignore[reportPrivateUsage]
        return lambda: linear(a, b, None, "none", [], "")
    if kind == "int8":
        x, y = ((m * 40).clamp(-127, 127).to(torch.int8) for m in (a, b))
        return lambda: torch._int_mm(x, y)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
    dtype = torch.float32 if kind == "f32" else torch.bfloat16
    x, y = a.to(dtype), b.to(dtype)
    return lambda: x @ y


def rate(step: Callable[[], object], worth: float, for_seconds: float) -> float:
    """Return the rate per second of the fastest of several calls."""
    best, end = float("inf"), time.perf_counter() + for_seconds
    while True:
        start = time.perf_counter()
        step()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return worth / best


MACHINE = Implementation(name="machine", build=ceilings)
"""Measured in turn with the implementations, so that both see the same machine load."""
