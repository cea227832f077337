"""Judge many cells, one process or several, and count what came of it."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context

import torch

from addnorm.check.judge import Case, Comparison, Verdict, gradients, judge, settled
from addnorm.check.matrix import Cell

Watch = Callable[[int], object]
"""Told how many cells are done."""


@dataclass(kw_only=True)
class Report:
    """How many cells hold and how many comparisons that took; which are refused, and which fail."""

    checked: int = 0
    compared: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    failed: list[Verdict] = field(default_factory=list[Verdict])

    def add(self, verdict: Verdict | str) -> None:
        """Count a cell that was judged, or the reason why it is refused."""
        if isinstance(verdict, str):
            self.refused[verdict] += 1
            return
        self.checked += 1
        self.compared += verdict.compared
        if verdict.failed:
            self.failed.append(verdict)

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
    """Judge every cell that is not refused, in `jobs` processes of one thread each."""
    report = Report()
    for done, verdict in enumerate(_verdicts(cells, jobs), start=1):
        report.add(verdict)
        watch(done)
    return report


def judge_or_refusal(cell: Cell) -> Verdict | str:
    """The verdict, or why the cell is refused."""
    return cell.refusal() or judge(cell)


def _verdicts(cells: Sequence[Cell], jobs: int) -> Iterator[Verdict | str]:
    if jobs == 1:
        yield from map(judge_or_refusal, cells)
        return
    one_thread = partial(torch.set_num_threads, 1)
    # Spawned: a fork would not survive what autograd's threads hold.
    with ProcessPoolExecutor(jobs, get_context("spawn"), initializer=one_thread) as pool:
        yield from pool.map(judge_or_refusal, cells, chunksize=16)


def compiled(cell: Cell) -> Verdict:
    """Whether `torch.compile` gives a cell's model the logits and the gradient that it has."""
    return settled(cell, _compiled(Case.of(cell)))


def _compiled(case: Case) -> Iterator[Comparison]:
    inputs, valid = case.batch("right")
    torch.compiler.reset()  # what the cells before left compiled
    expected, ours = case.model(*inputs)[valid], torch.compile(case.model)(*inputs)[valid]
    yield "compiled logits", ours, expected
    yield "compiled gradient", *gradients(case.model, ours, expected)
