"""The fastest product of one or a few rows with a matrix in a compiled graph.

Such a product reads every weight once, so the speed of memory is the limit, and how close it comes
to it depends on the processor: a loop of the compiler's, torch's product, oneDNN's of a packed
copy, or our operator. It is measured when a graph with such weights is first compiled, and stored
in the folder of caches.
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
from addnorm.kernels import row_products as operators
from addnorm.kernels.build import has_operator
from addnorm.kernels.row_products import OPERATORS
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

RowProduct = Literal["loop", "torch", "onednn", "operator"]

NOISE = 1.1
"""How many times faster than the first product another must be, in most rounds, to be chosen."""

COUNTS = (32, 16, 8, 4)
"""The numbers of rows for which our operators are compared with products of many rows."""

ROWS = 16
"""The number of rows that oneDNN's packed layout is made for; it works for any number."""

_pointwise = onednn()


@config
class Kept:
    """A choice, with the measured median times in milliseconds."""

    choice: RowProduct
    milliseconds: Mapping[RowProduct, PositiveFloat]
    disturbed: bool
    """Whether other work took the processor meanwhile; the first is then used for an hour."""


def row_product(dtype: torch.dtype, rows: int = 1) -> RowProduct:
    """The fastest product of rows with a matrix of this type; a loop for other types.

    The type of weights of four bits, two in a byte, is uint8.
    """
    return _of_threads(dtype, rows, torch.get_num_threads()) if dtype in OPERATORS else "loop"


def few_rows(dtype: torch.dtype) -> int:
    """Up to how many rows our operator is the fastest product in a graph for any number of them.

    Zero for matrices of four bits, for which torch has no product of several rows in a graph.
    """
    if dtype is torch.uint8:
        return 0
    return next((rows for rows in COUNTS if row_product(dtype, rows) == "operator"), 0)


@cache
def _of_threads(dtype: torch.dtype, rows: int, threads: int) -> RowProduct:
    name = "row" if rows == 1 else f"{rows} rows"
    file = file_of(replace(this_machine(), threads=threads), name, str(dtype)[6:])
    match read_kept(file, Kept):
        case stored, recent if _is_possible(stored, dtype, rows) and (
            recent or not stored.disturbed
        ):
            return stored.choice
        case _ if not has_compiler():
            return _first(rows)
        case _:
            result = _measure(dtype, rows)
            keep(file, result)
            return result.choice


def _first(rows: int) -> RowProduct:
    """The product that is taken unless another is faster."""
    return "loop" if rows == 1 else "torch"


def operator_of(dtype: torch.dtype, rows: int = 1) -> str:
    """The name of our operator for matrices of this type."""
    return "int8_matmul" if dtype is torch.int8 and rows > 1 else OPERATORS[dtype]


def _is_possible(stored: Kept, dtype: torch.dtype, rows: int) -> bool:
    """Whether a stored choice was measured, and is available here."""
    if not {_first(rows), stored.choice} <= stored.milliseconds.keys():
        return False
    match stored.choice:
        case "onednn":
            return _pointwise is not None
        case "operator":
            return has_operator(operator_of(dtype, rows))
        case _:
            return True


def _measure(dtype: torch.dtype, rows: int) -> Kept:
    with warnings.catch_warnings():  # the compiler's own
        warnings.simplefilter("ignore")
        times, disturbed = measured(candidates(dtype, rows))
    return Kept(
        choice=_first(rows) if disturbed else choose(times),
        milliseconds={name: 1e3 * median(seconds) for name, seconds in times.items()},  # pyright: ignore[reportArgumentType]
        disturbed=disturbed,
    )


def choose(seconds: Mapping[str, Sequence[float]]) -> RowProduct:
    """The fastest product in alternating rounds; the first unless another is clearly faster."""
    first, *_ = seconds
    gains = {name: gain(seconds[first], times) for name, times in seconds.items()}
    best = max(gains, key=gains.__getitem__)
    return cast(RowProduct, best if gains[best] > NOISE else first)


def candidates(dtype: torch.dtype, rows: int = 1) -> dict[str, Callable[[], object]]:
    """Functions that compute each product, each call with the next of many matrices."""
    if rows > 1:
        works = _of_several(dtype, rows)
    else:
        works = _of_integers(dtype) if dtype in (torch.int8, torch.uint8) else _of_floats(dtype)
    return {name: _in_turn(product, matrices) for name, (product, matrices) in works.items()}


Work = tuple[Callable[..., Tensor], Sequence[Sequence[Tensor]]]
"""A product, and the arguments of each matrix."""

D_OUT, D_IN = 2048, 1024


def _of_floats(dtype: torch.dtype) -> dict[str, Work]:
    x = torch.ones(1, D_IN, dtype=dtype, device="cpu")
    n = 2**26 // (D_OUT * D_IN * dtype.itemsize)
    matrices = [(x, torch.ones(D_OUT, D_IN, dtype=dtype, device="cpu")) for _ in range(n)]
    works: dict[str, Work] = {
        "loop": (compiler.compile(_loop, dynamic=False), matrices),
        "torch": (F.linear, matrices),
    }
    if _pointwise is not None and (dtype is torch.float32 or multiplies_bfloat16):
        with suppress(RuntimeError):  # then it is not a candidate
            packed = [(x, packed_weight(matrix)) for _, matrix in matrices]
            works["onednn"] = (_packed_product, packed)
    if has_operator(OPERATORS[dtype]):
        works["operator"] = (operators.row_product, matrices)
    return works


def _of_integers(dtype: torch.dtype) -> dict[str, Work]:
    """Products with matrices of eight bits, or of four in groups of 32."""
    x = torch.ones(1, D_IN, device="cpu")
    of_four = dtype is torch.uint8
    n, width = (128, D_IN // 2) if of_four else (32, D_IN)
    groups = torch.ones(D_OUT, D_IN // 32, dtype=torch.bfloat16, device="cpu")
    scale = groups if of_four else torch.ones(D_OUT, device="cpu")
    matrices = [
        (x, torch.full((D_OUT, width), 0x99 if of_four else 1, dtype=dtype, device="cpu"), scale)
        for _ in range(n)
    ]
    loop = _int4_loop if of_four else _int8_loop
    works: dict[str, Work] = {"loop": (compiler.compile(loop, dynamic=False), matrices)}
    if has_operator(OPERATORS[dtype]):
        operator = operators.int4_row_product if of_four else operators.int8_row_product
        works["operator"] = (operator, matrices)
    return works


def _of_several(dtype: torch.dtype, rows: int) -> dict[str, Work]:
    """Our product of several rows, and torch's, by oneDNN; of integers with integers.

    Ours is the first: it reads the matrix as it is.
    """
    x = torch.ones(rows, D_IN, dtype=dtype, device="cpu")
    n = 2**26 // (D_OUT * D_IN * dtype.itemsize)
    matrices = [(x, torch.ones(D_OUT, D_IN, dtype=dtype, device="cpu")) for _ in range(n)]
    works: dict[str, Work] = {}
    if has_operator(operator_of(dtype, rows)):
        ours = operators.int8_matmul if dtype is torch.int8 else operators.row_product
        works["operator"] = (ours, matrices)
    works["torch"] = (F.linear, matrices)
    if dtype is torch.int8:
        works["torch"] = (lambda x, values: torch.ops.aten._int_mm(x, values.t()), matrices)
    elif _pointwise is not None:
        with suppress(RuntimeError):
            packed = [(x, packed_weight(matrix)) for _, matrix in matrices]
            works["torch"] = (_packed_product, packed)
    return works


def _loop(x: Tensor, weight: Tensor) -> Tensor:
    return (x[..., None, :] * weight).sum(-1)


def _int8_loop(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    return _loop(x, values.to(x.dtype)) * scale


def _int4_loop(x: Tensor, values: Tensor, scale: Tensor) -> Tensor:
    """The product as a loop in a graph, from the tensors of `quantize.int4`."""
    halves = torch.stack([values & 15, values >> 4], -1).flatten(-2).to(torch.int8) - 8
    groups = halves.float().unflatten(-1, (scale.shape[-1], -1))
    return _loop(x, (groups * scale.float()[..., None]).flatten(-2))


def _packed_product(x: Tensor, packed: Tensor) -> Tensor:
    return _pointwise(x, packed, None, "none", [], "")


def _in_turn(
    product: Callable[..., Tensor], matrices: Sequence[Sequence[Tensor]]
) -> Callable[[], object]:
    stream = cycle(matrices)
    return lambda: product(*next(stream))


def measured(works: Mapping[str, Callable[[], object]]) -> tuple[dict[str, list[float]], bool]:
    """The seconds of each work, in alternating rounds, and whether other work disturbed them."""
    with torch.inference_mode():
        works = running(works)  # compiled
        start, switches = time.perf_counter(), involuntary_switches()
        times = rounds_of(works, time.perf_counter, until=math.inf)
        return times, was_disturbed(switches, time.perf_counter() - start)


def packed_weight(weight: Tensor) -> Tensor:
    """A copy of a matrix in oneDNN's packed layout."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS)
