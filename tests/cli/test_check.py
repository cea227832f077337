"""`addnorm check`: its output and exit status."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from addnorm.checking import run
from addnorm.checking.comparison import CellResult
from addnorm.checking.matrix import Cell

Command = Callable[..., tuple[int, str, str]]

FEW = ("--only", "encoder/alibi/*/dot/mha/full/")


def test_cells_by_name(addnorm: Command) -> None:
    code, out, _ = addnorm("check", *FEW, "--sample", 2)
    assert (code, out.split()[0]) == (0, "2")
    assert ", 0 refused, 0 failed\n" in out


def test_kernels_by_name(addnorm: Command) -> None:
    code, out, _ = addnorm("check", "--only", "kernel/sdpa")
    assert (code, out.split()[0]) == (0, "7")


def test_all_of_them_and_why_some_are_refused(
    addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "compare_cell", lambda cell: CellResult(cell=cell.id, compared=1))
    code, out, _ = addnorm("check", "--all", "--only", "encoder/rotary/*/bilinear/mha/full/")
    assert code == 0
    first, *refused = out.splitlines()
    assert first == "0 combinations checked in 0 comparisons, 9 refused, 0 failed"
    reasons = ("× rotary positions", "× no fused kernel", "× the heads of a pair share keys")
    assert all(any(reason in line for reason in reasons) for line in refused)


def test_a_failure_is_named_and_is_status_1(
    addnorm: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(cell: Cell) -> CellResult:
        return CellResult(cell=cell.id, compared=2, failed="gradient", error=0.5)

    monkeypatch.setattr(run, "compare_cell", fails)
    code, out, err = addnorm("check", *FEW, "--sample", 1, "--seed", 3)
    assert code == 1
    assert "1 failed\nfailed: encoder/alibi/" in out
    assert "gradient, off by 0.5" in out
    assert err.startswith("failed: encoder/alibi/")  # at once, before the work has ended


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
        (["--part", "my_parts"], "give the module and the name"),
        (["--definition", "a:b"], "name it with --part"),
        (["--smaple", "1"], "Did you mean '--sample'?"),
    ],
)
def test_mistakes(words: list[str], expected: str, addnorm: Command) -> None:
    code, out, err = addnorm("check", *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1


PARTS_FILE = Path(__file__).parent.parent / "checking" / "my_parts.py"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with somebody's parts."""
    (tmp_path / "strangers_parts.py").write_text(PARTS_FILE.read_text("utf-8"), "utf-8")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("strangers_parts", None)


@pytest.mark.long
def test_a_custom_part(addnorm: Command, folder: Path) -> None:
    code, out, err = addnorm(
        *("check", "--part", "strangers_parts:SineConfig", "--no-compile", "--sample", 2)
    )
    assert (code, err) == (0, "")
    first, second, *_ = out.splitlines()
    assert first.startswith("feedforward strangers_parts:SineConfig: contract, gradients, ")
    assert second.startswith("8 combinations checked in")
    assert ", 0 failed" in second


@pytest.mark.long
def test_a_part_that_differs_from_its_definition(addnorm: Command, folder: Path) -> None:
    code, out, _ = addnorm(
        *("check", "--part", "strangers_parts:DyTConfig", "--no-compile", "--sample", 1),
        *("--definition", "strangers_parts:dyt_without_bias"),
        *("--import", "strangers_parts.py"),
    )
    assert code == 1
    assert "logits, off by" in out


def test_a_custom_loss(addnorm: Command, folder: Path) -> None:
    code, out, _ = addnorm("check", "--part", "strangers_parts:MeanConfig")
    assert code == 1
    assert "failed: loss/" in out
    assert "the loss of a batch is the sum of its rows'" in out


def test_a_part_that_is_not_there(addnorm: Command, folder: Path) -> None:
    code, out, err = addnorm("check", "--part", "strangers_parts:SinConfig")
    assert (code, out) == (2, "")
    assert "Did you mean 'SineConfig'" in err
    assert err.count("\n") == 1
