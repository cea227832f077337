"""Compare many cells with their definitions, in one process or several, and count the results."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

import torch

from addnorm.check.compare import (
    Case,
    CellResult,
    Comparison,
    compare_cell,
    gradients,
    run_comparisons,
)
from addnorm.check.matrix import Cell

Watch = Callable[[int], object]
"""Told how many cells are done."""


@dataclass(kw_only=True)
class Report:
    """How many cells hold and how many comparisons that took; which are refused, and which fail."""

    checked: int = 0
    compared: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    failed: list[CellResult] = field(default_factory=list[CellResult])

    def add(self, result: CellResult | str) -> None:
        """Count a cell that was compared, or the reason why it is refused."""
        if isinstance(result, str):
            self.refused[result] += 1
            return
        self.checked += 1
        self.compared += result.compared
        if result.failed:
            self.failed.append(result)

    def text(self) -> str:
        """What came of it, for a person to read."""
        lines = [
            f"{self.checked:,} combinations checked in {self.compared:,} comparisons, "
            f"{self.refused.total():,} refused, {len(self.failed):,} failed"
        ]
        lines += [f"refused: {n:,} × {reason}" for reason, n in self.refused.most_common()]
        lines += [f"failed: {v.cell}: {v.failed}, off by {v.error:.1g}" for v in self.failed]
        return "\n".join(lines)


def check(cells: Sequence[Cell], *, jobs: int = 1, watch: Watch = lambda _: None) -> Report:
    """Compare every cell that is not refused, in `jobs` processes of one thread each."""
    report = Report()
    for done, result in enumerate(_results(cells, jobs), start=1):
        report.add(result)
        watch(done)
    return report


def compare_or_refusal(cell: Cell) -> CellResult | str:
    """The result of a cell, or why it is refused."""
    return cell.refusal() or compare_cell(cell)


def _results(cells: Sequence[Cell], jobs: int) -> Iterator[CellResult | str]:
    if jobs == 1:
        yield from map(compare_or_refusal, cells)
        return
    one_thread = partial(torch.set_num_threads, 1)
    # Spawned: a fork would not survive what autograd's threads hold.
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=one_thread) as pool:
        yield from pool.map(compare_or_refusal, cells, chunksize=16)


def compiled(cell: Cell) -> CellResult:
    """Whether `torch.compile` gives a cell's model the logits and the gradient that it has."""
    return run_comparisons(cell, _compiled(Case.of(cell)))


def _compiled(case: Case) -> Iterator[Comparison]:
    inputs, valid = case.batch("right")
    torch.compiler.reset()  # what the cells before left compiled
    expected, ours = case.model(*inputs)[valid], torch.compile(case.model)(*inputs)[valid]
    yield "compiled logits", ours, expected
    yield "compiled gradient", *gradients(case.model, ours, expected)
