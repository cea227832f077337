"""Running the check: a fixed sample here, all combinations in the slow lane."""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from addnorm.checking.axes import ARCHITECTURES
from addnorm.checking.comparison import CellResult
from addnorm.checking.matrix import Cell, cells, named
from addnorm.checking.run import Report, check, compiled, matching
from addnorm.checking.sampling import sample
from addnorm.errors import InputError

ADDNORM = Path(sys.executable).parent / "addnorm"


@cache
def everything() -> list[Cell]:
    return list(cells())


def some(n: int, family: str) -> list[Cell]:
    """Some cells of an architecture: of a fixed sample, those that are not refused."""
    chosen = sample(n, 0, [cell for cell in everything() if cell.family == family])
    return [cell for cell in chosen if not cell.refusal()]


@pytest.mark.sampled(3)
@pytest.mark.long
@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_sample_of_cells_is_as_defined(family: str) -> None:
    report = check(some(4, family))
    assert report.failed == []
    assert report.checked > 1
    assert report.compared > 8 * report.checked


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
def test_compiled_is_eager() -> None:
    for cell in some(6, "decoder"):
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
    assert (report.checked, report.compared) == (2, 5)
    assert report.refused == {"no sense": 2}
    assert [result.cell for result in report.failed] == ["b"]


def test_a_report_names_what_needs_values() -> None:
    report = Report()
    assert "values" not in report.text()
    for reason in ("it counts", "it sorts", "it counts"):
        report.add(CellResult(cell="a", compared=3, needs_values=(reason,)))
    assert "on another device, 2 combinations need values: it counts" in report.text()
    assert "on another device, 1 combination needs values: it sorts" in report.text()


def test_what_there_is_to_check() -> None:
    cells_found, others = matching("")
    assert len(cells_found) == len(everything())
    assert {name.partition("/")[0] for name in others} == {"kernel", "decoding", "device"}
    assert matching("decoding/*greedy") == (
        [],
        [name for name in others if name.startswith("decoding") and name.endswith("greedy")],
    )
    assert matching("encoder/none/*")[1] == []
    with pytest.raises(InputError, match="Did you mean 'rotary'"):
        matching("rotry")


@pytest.mark.long
def test_several_processes_find_the_same() -> None:
    refused = next(cell for cell in named("encoder/rotary/*/additive"))
    few = [refused, *some(3, "encoder"), "kernel/sdpa/one_query"]
    done: list[int] = []
    alone, together = check(few, watch=done.append), check(few, jobs=2)
    assert done == [1, 2, 3, 4, 5]
    assert alone == together
    assert alone.checked == 4
