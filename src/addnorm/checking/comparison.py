"""Comparisons of actual and expected tensors, with a tolerance for each dtype."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from addnorm.compiler import CompilerError

TOLERANCES = {torch.float64: 1e-9, torch.float32: 5e-4, torch.bfloat16: 0.2}
"""The largest allowed error, relative to the largest expected value or to one.

The lower-precision types round in every layer, so their tolerances only detect gross errors.
"""


class Comparison(NamedTuple):
    """A named pair of an actual and an expected value."""

    name: str
    ours: Tensor
    expected: Tensor
    tolerance: float | None = None
    """By default the tolerance for the dtype of `ours`."""

    needs_values: str = ""
    """The reason why it cannot be made on the meta device, which has no values."""

    @classmethod
    def that(cls, name: str, holds: bool) -> "Comparison":
        """Return a comparison that fails unless a condition holds."""
        return cls(name, torch.tensor(holds), torch.tensor(True))

    @property
    def error(self) -> float:
        """The largest error, relative to the largest expected value or to one."""
        return distance(self.ours, self.expected)

    @property
    def holds(self) -> bool:
        """Return whether the error is within the tolerance; False for NaN."""
        if self.tolerance is not None:
            return self.error <= self.tolerance
        return self.error <= TOLERANCES.get(self.ours.dtype, 0.0)


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """The result of a cell: its first failed comparison, if any, and the error."""

    cell: str
    compared: int
    failed: str | None = None
    error: float = 0.0
    needs_values: tuple[str, ...] = ()


def run_comparisons(cell: str, compared: Iterable[Comparison]) -> CellResult:
    """Run a cell's comparisons until one fails or raises an exception.

    Generators are closed, which leaves their contexts, such as `no_grad`. Raises `CompilerError`
    if a compiler fails, which says nothing of the cell.
    """
    n, needs_values = 0, list[str]()
    try:
        for comparison in compared:
            if comparison.needs_values:
                needs_values.append(comparison.needs_values)
                continue
            n += 1
            if not comparison.holds:
                name, error = comparison.name, comparison.error
                return CellResult(cell=cell, compared=n, failed=name, error=error)
    except CompilerError:
        raise
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        return CellResult(cell=cell, compared=n, failed=failure, error=float("inf"))
    finally:
        if isinstance(compared, Generator):
            compared.close()
    return CellResult(cell=cell, compared=n, needs_values=tuple(needs_values))


def distance(ours: Tensor, expected: Tensor) -> float:
    """The largest error, relative to the largest expected value or to one."""
    if ours.shape != expected.shape:
        return float("inf")
    if not ours.numel():
        return 0.0
    ours, expected = ours.detach().double(), expected.detach().double()
    scale = max(1.0, expected.abs().max().item())
    return (ours - expected).abs().max().item() / scale
