"""Running the check: a fixed sample here, every combination in the slow lane."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jaxtyping
import pytest

from addnorm.check.compare import CellResult
from addnorm.check.matrix import FAMILIES, MIXERS, VARIANTS, Cell, cells, named, sample
from addnorm.check.run import Report, check, compiled

ADDNORM = Path(sys.executable).parent / "addnorm"


@cache
def everything() -> list[Cell]:
    return list(cells())


def some(n: int, holds: Callable[[Cell], bool]) -> list[Cell]:
    """About `n` cells of which this holds: those of a fixed sample that are not refused."""
    found = sample(n, 0, [cell for cell in everything() if holds(cell)])
    return [cell for cell in found if not cell.refusal()]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_of_cells_is_as_defined(family: str) -> None:
    report = check(some(16, lambda cell: cell.family == family and not cell.variant))
    assert report.failed == []
    assert report.checked > 8
    assert report.compared > 4 * report.checked


@pytest.mark.parametrize("mixer", MIXERS)
def test_a_sample_of_mixers_is_as_defined(mixer: str) -> None:
    assert check(some(2, lambda cell: cell.mixer == mixer)).failed == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_sample_of_variants_is_as_defined(variant: str) -> None:
    report = check(some(2, lambda cell: cell.variant == variant))
    assert report.failed == []
    assert report.checked == 2


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_every_cell_is_as_defined() -> None:
    """In processes of its own, without the tests' check of types, which takes twice the time."""
    done = subprocess.run(
        [ADDNORM, "check", "--all", "--jobs", "2"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert " 0 failed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore")  # what the compiler remarks on the way
def test_compiled_is_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    # Checks of annotations compare shapes, which a tracer keeps open.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for cell in some(6, lambda _: True):
        assert compiled(cell).failed is None, cell.id


def test_a_report_counts() -> None:
    report = Report()
    for result in (
        CellResult(cell="a", compared=3),
        CellResult(cell="b", compared=2, failed="gradient", error=0.5),
        "no sense",
        "no sense",
    ):
        report.add(result)
    assert report.text() == (
        "2 combinations checked in 5 comparisons, 2 refused, 1 failed\n"
        "refused: 2 × no sense\n"
        "failed: b: gradient, off by 0.5"
    )


def test_several_processes_find_the_same() -> None:
    refused = next(cell for cell in named("encoder/rotary/*/additive/*/relu"))
    few = [refused, *some(9, lambda cell: cell.family == "encoder")[:3]]
    done: list[int] = []
    alone, together = check(few, watch=done.append), check(few, jobs=2)
    assert done == [1, 2, 3, 4]
    assert alone == together
    assert alone.checked == 3
