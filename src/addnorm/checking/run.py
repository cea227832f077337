"""Compares many cells with their definitions, in one or more processes, and collects results."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from multiprocessing import get_context

import torch

from addnorm import compiler
from addnorm.checking.another_device import compare_device, device_cells
from addnorm.checking.axes import check_definitions, check_fields
from addnorm.checking.case import Case, gradients, real
from addnorm.checking.compare import compare_cell
from addnorm.checking.comparison import CellResult, Comparison, run_comparisons
from addnorm.checking.decoding import compare_decoding, decoding_cells
from addnorm.checking.kernels import compare_kernel, kernel_cells
from addnorm.checking.matrix import Cell, named
from addnorm.errors import InputError

Item = Cell | str
"""A cell of the matrix, or the name of a kernel, decoding or device check."""

_OTHERS: Mapping[str, Callable[[str], CellResult]] = {
    "kernel": compare_kernel,
    "decoding": compare_decoding,
    "device": compare_device,
}

Watch = Callable[[int], object]
"""A callback with the number of completed cells."""

CHUNK = 8
"""The items that a process is given at a time."""

CHUNKS_OF_A_PROCESS = 100
"""The chunks after which a process ends and another begins, since its memory grows."""


@dataclass(kw_only=True)
class Report:
    """The numbers of cells and comparisons, the invalid cells, and the failures.

    `needs_values` counts the cells that were not compared on the meta device, by the reason.
    """

    checked: int = 0
    compared: int = 0
    refused: Counter[str] = field(default_factory=Counter[str])
    needs_values: Counter[str] = field(default_factory=Counter[str])
    failed: list[CellResult] = field(default_factory=list[CellResult])

    def add(self, result: CellResult | str) -> None:
        """Add the result of a cell, or the reason why it is invalid."""
        if isinstance(result, str):
            self.refused[result] += 1
            return
        self.checked += 1
        self.compared += result.compared
        self.needs_values.update(result.needs_values)
        if result.failed:
            self.failed.append(result)

    def text(self) -> str:
        """A human-readable summary."""
        first = (
            f"{self.checked:,} combinations checked in {self.compared:,} comparisons, "
            f"{self.refused.total():,} refused, {len(self.failed):,} failed"
        )
        refused = [f"refused: {n:,} × {reason}" for reason, n in self.refused.most_common()]
        waiting = [
            f"on another device, {n:,} {'combination needs' if n == 1 else 'combinations need'} "
            f"values: {reason}"
            for reason, n in self.needs_values.most_common()
        ]
        return "\n".join([first, *refused, *waiting, *map(failure, self.failed)])


def failure(result: CellResult) -> str:
    """Return the line that says what differs in a cell, and by how much."""
    return f"failed: {result.cell}: {result.failed}, off by {result.error:.1g}"


def matching(only: str) -> tuple[list[Cell], list[str]]:
    """Return the cells of the matrix and the other checks that match `only`.

    The others are those of kernels, of decoding and on a device. Raises `InputError` if nothing
    matches, if a part has no definition, or if a model field is
    neither varied nor listed.
    """
    check_definitions()
    check_fields()
    others = [*kernel_cells(), *decoding_cells(), *device_cells()]
    if only:
        others = [name for name in others if fnmatchcase(name, f"{only}*")]
    try:
        return named(only), others
    except InputError:
        if others:
            return [], others
        raise


def check(
    items: Sequence[Item],
    *,
    jobs: int = 1,
    watch: Watch = lambda _: None,
    failed: Callable[[CellResult], object] = lambda _: None,
) -> Report:
    """Compare every valid item, in `jobs` single-threaded processes.

    `watch` is called after each item, `failed` as soon as one differs from its definition.
    """
    report = Report()
    for done, result in enumerate(_results(items, jobs), start=1):
        report.add(result)
        if isinstance(result, CellResult) and result.failed:
            failed(result)
        watch(done)
    return report


def compare_or_refusal(item: Item) -> CellResult | str:
    """Return the result of an item, or the reason why it is invalid."""
    if isinstance(item, str):
        return _OTHERS[item.partition("/")[0]](item)
    return item.refusal() or compare_cell(item)


def _results(items: Sequence[Item], jobs: int) -> Iterator[CellResult | str]:
    if jobs == 1:
        yield from map(compare_or_refusal, items)
        return
    one_thread = partial(torch.set_num_threads, 1)
    # Spawned, because autograd's threads do not survive a fork.
    with ProcessPoolExecutor(
        jobs,
        get_context("spawn"),
        initializer=one_thread,
        max_tasks_per_child=CHUNKS_OF_A_PROCESS,
    ) as pool:
        yield from pool.map(compare_or_refusal, items, chunksize=CHUNK)


def compiled(cell: Cell, *, defined: bool = True) -> CellResult:
    """Compare a cell's compiled model with the eager one: logits and gradients."""
    return run_comparisons(f"{cell.id}, compiled", _compiled(Case.of(cell, defined=defined)))


def _compiled(case: Case) -> Iterator[Comparison]:
    inputs, valid = case.batch("right")
    torch.compiler.reset()  # clear what earlier cells compiled
    expected = real(case.model(*inputs), valid)
    ours = real(compiler.compile(case.model)(*inputs), valid)
    yield Comparison("compiled logits", ours, expected)
    yield Comparison("compiled gradient", *gradients(case.model, ours, expected))
