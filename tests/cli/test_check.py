"""`addnorm check`: what it says, and its exit status."""

from collections.abc import Callable

import pytest

from addnorm.check import run
from addnorm.check.compare import CellResult
from addnorm.check.matrix import Cell

Command = Callable[..., tuple[int, str, str]]

FEW = ("--only", "encoder/none/rmsnorm/pre/dot/mha/*")


def test_cells_by_name(addnorm: Command) -> None:
    code, out, _ = addnorm("check", *FEW, "--sample", 2)
    assert (code, out.split()[0]) == (0, "2")
    assert out.endswith("0 refused, 0 failed\n")


def test_all_of_them_and_why_some_are_refused(
    addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "compare_cell", lambda cell: CellResult(cell=cell.id, compared=1))
    code, out, _ = addnorm("check", "--all", "--only", "encoder/rotary/rmsnorm/pre/*/mha/full/*")
    assert code == 0
    first, *refused = out.splitlines()
    assert first == "2 combinations checked in 2 comparisons, 2 refused, 0 failed"
    assert all(line.startswith("refused: 1 × rotary positions") for line in refused)


def test_a_failure_is_named_and_is_status_1(
    addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(cell: Cell) -> CellResult:
        return CellResult(cell=cell.id, compared=2, failed="gradient", error=0.5)

    monkeypatch.setattr(run, "compare_cell", fails)
    code, out, _ = addnorm("check", *FEW, "--sample", 1, "--seed", 3)
    assert code == 1
    assert "1 failed\nfailed: encoder/none/rmsnorm/pre/dot/mha/" in out
    assert "gradient, off by 0.5" in out


def test_compiled_models_count_too(addnorm: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(cell: Cell) -> CellResult:
        return CellResult(cell=cell.id, compared=2, failed="compiled logits", error=0.5)

    monkeypatch.setattr(run, "compiled", fails)
    code, out, _ = addnorm("check", *FEW, "--sample", 1, "--compile", 1)
    assert code == 1
    assert out.startswith("2 combinations checked")
    assert "compiled logits, off by 0.5" in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--only", "rotry"], "Did you mean 'rotary'?"),
        (["--sample", "-1"], "--sample"),
        (["--jobs", "0"], "--jobs"),
        (["--smaple", "1"], "Did you mean --sample?"),
    ],
)
def test_mistakes(words: list[str], expected: str, addnorm: Command) -> None:
    code, out, err = addnorm("check", *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1
