"""The fastest library for the product of a single row with a matrix in a compiled graph.

Such a product reads every weight once, so the speed of memory is the limit, and how close it comes
to it depends on the processor: a loop of the compiler's, torch's product, or oneDNN's of a packed
copy. It is measured when a graph is first compiled, and stored in the folder of caches.
"""

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import cycle
from statistics import median
from typing import Literal, cast

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn import functional as F

from addnorm import compiler
from addnorm.compiler import has_compiler
from addnorm.config import config
from addnorm.nn.linear import multiplies_bfloat16, onednn
from addnorm.tuning.calibration import (
    file_of,
    gain,
    involuntary_switches,
    keep,
    read_kept,
    rounds_of,
    running,
    this_machine,
    was_disturbed,
)

RowProduct = Literal["loop", "torch", "onednn"]

NOISE = 1.1
"""How many times faster than a loop another product must be, in most rounds, to be chosen."""

ROWS = 16
"""The number of rows that oneDNN's packed layout is made for; it works for any number."""

_pointwise = onednn()


@config
class Kept:
    """A choice, with the median times that it rests on, in milliseconds."""

    choice: RowProduct
    milliseconds: Mapping[RowProduct, PositiveFloat]
    disturbed: bool
    """Return whether other work took the processor meanwhile; loops are then used for an hour."""


def row_product(dtype: torch.dtype) -> RowProduct:
    """The fastest product of a row with a matrix of this dtype; a loop for other dtypes."""
    if dtype not in (torch.float32, torch.bfloat16):
        return "loop"
    return _of_threads(dtype, torch.get_num_threads())


@cache
def _of_threads(dtype: torch.dtype, threads: int) -> RowProduct:
    file = file_of(replace(this_machine(), threads=threads), "row", str(dtype)[6:])
    match read_kept(file, Kept):
        case stored, recent if _is_possible(stored) and (recent or not stored.disturbed):
            return stored.choice
        case _ if not has_compiler():
            return "loop"
        case _:
            result = _measure(dtype)
            keep(file, result)
            return result.choice


def _is_possible(stored: Kept) -> bool:
    """Whether a stored choice was measured, and is available here."""
    available = stored.choice != "onednn" or _pointwise is not None
    return available and {"loop", stored.choice} <= stored.milliseconds.keys()


def _measure(dtype: torch.dtype) -> Kept:
    with warnings.catch_warnings():  # the compiler's own
        warnings.simplefilter("ignore")
        times, disturbed = measured(candidates(dtype))
    return Kept(
        choice="loop" if disturbed else choose(times),
        milliseconds={name: 1e3 * median(seconds) for name, seconds in times.items()},  # pyright: ignore[reportArgumentType]
        disturbed=disturbed,
    )


def choose(seconds: Mapping[str, Sequence[float]]) -> RowProduct:
    """The fastest by rounds in turn, but a loop unless another is faster beyond the noise."""
    gains = {name: gain(seconds["loop"], times) for name, times in seconds.items()}
    best = max(gains, key=gains.__getitem__)
    return cast(RowProduct, best) if gains[best] > NOISE else "loop"


def candidates(dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """Each product with its own matrices in turn, together larger than a cache."""
    n, d_out, d_in = 2**26 // (2048 * 1024 * dtype.itemsize), 2048, 1024
    x = torch.ones(1, d_in, dtype=dtype, device="cpu")
    matrices = [torch.ones(d_out, d_in, dtype=dtype, device="cpu") for _ in range(n)]
    works: dict[str, Callable[[], object]] = {
        "loop": _in_turn(compiler.compile(_loop, dynamic=False), x, matrices),
        "torch": _in_turn(F.linear, x, matrices),
    }
    if _pointwise is not None and (dtype is torch.float32 or multiplies_bfloat16):
        with suppress(RuntimeError):  # then it is not a candidate
            packed = [packed_weight(matrix) for matrix in matrices]
            works["onednn"] = _in_turn(_packed_product, x, packed)
    return works


def _loop(x: Tensor, weight: Tensor) -> Tensor:
    return (x[..., None, :] * weight).sum(-1)


def _packed_product(x: Tensor, packed: Tensor) -> Tensor:
    return _pointwise(x, packed, None, "none", [], "")


def _in_turn(
    product: Callable[[Tensor, Tensor], Tensor], x: Tensor, matrices: list[Tensor]
) -> Callable[[], object]:
    stream = cycle(matrices)
    return lambda: product(x, next(stream))


def measured(works: Mapping[str, Callable[[], object]]) -> tuple[dict[str, list[float]], bool]:
    """The seconds of works in turn, and whether other work disturbed them."""
    with torch.inference_mode():
        works = running(works)  # compiled
        start, switches = time.perf_counter(), involuntary_switches()
        times = rounds_of(works, time.perf_counter, until=math.inf)
        return times, was_disturbed(switches, time.perf_counter() - start)


def packed_weight(weight: Tensor) -> Tensor:
    """A copy of a matrix in oneDNN's packed layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
