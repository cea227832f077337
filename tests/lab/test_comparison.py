"""Runs side by side: what differs, what they cost, and what they reached."""

import json
import shutil
from pathlib import Path

import pytest
from tests.lab.small import small_study
from tests.lab.test_executor import Here

from addnorm.errors import InputError
from addnorm.lab.comparison import (
    TEXTS,
    Comparison,
    Facts,
    compare,
    comparison_markdown,
    rows,
    write_comparison,
)
from addnorm.quantize import Int8Config
from addnorm.runs.rewriting.quantize import quantize_run
from addnorm.runs.run import Run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs that differ in their norm."""
    study = small_study(tmp_path_factory.mktemp("runs"), seeds=1)
    study.run(Here, 1)
    return [cell.folder for cell in study.cells]


@pytest.mark.long
def test_what_differs_and_what_it_came_to(runs: list[Path], tmp_path: Path) -> None:
    found = compare([*runs, runs[0]])
    assert len(found.runs) == 2  # the same folder is one run
    assert found.fields.keys() >= {"model.norm.kind"}
    assert found.fields["model.norm.kind"] == ["layernorm", "rmsnorm"]
    first = found.runs[0]
    lines = [json.loads(x) for x in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    losses = [line for line in lines if "loss" in line]
    assert first.steps == losses[-1]["step"] == 8
    assert first.tokens == sum(line["tokens"] for line in losses)
    assert first.last_loss == losses[-1]["loss"]
    valid = [line["valid_loss"] for line in lines if "valid_loss" in line]
    assert first.best == min(valid)
    assert first.last["loss"] == valid[-1]
    assert first.seconds is not None
    assert first.flops == found.runs[1].flops
    table = dict(rows(found))
    assert table["model.norm.kind"] == ["layernorm", "rmsnorm"]
    assert comparison_markdown(found).count("\n") == len(table) + 2
    written = write_comparison(found, tmp_path / "out")
    assert {file.name for file in written} == {
        "comparison.md",
        "comparison.json",
        "comparison.tex",
        "curves.png",
        "curves.svg",
    }
    assert json.loads((tmp_path / "out" / "comparison.json").read_text())["runs"][0]["steps"] == 8


@pytest.mark.long
def test_data_that_have_gone_leave_a_dash(runs: list[Path], tmp_path: Path) -> None:
    for name, run in zip("ab", runs, strict=True):
        shutil.copytree(run, tmp_path / name)
        file = tmp_path / name / "config.json"
        file.write_text(file.read_text().replace("text.txt", "gone.txt"))
    found = compare([tmp_path / "a", tmp_path / "b"])
    assert dict(rows(found))["FLOP per token"] == ["–", "–"]


@pytest.mark.long
def test_other_weights_are_named_and_earlier_pictures_go(runs: list[Path], tmp_path: Path) -> None:
    write_comparison(compare(runs), tmp_path / "out")
    assert (tmp_path / "out" / "curves.png").exists()
    assert "weights" not in dict(rows(compare(runs)))
    quantize_run(Run.open(runs[0]), tmp_path / "small", Int8Config())
    found = compare([runs[0], tmp_path / "small"])
    assert dict(rows(found))["weights"] == ["float32", "int8 dynamic"]
    assert [file.name for file in write_comparison(found, tmp_path / "out")] == [*TEXTS]
    assert not list((tmp_path / "out").glob("curves.*"))


@pytest.mark.long
def test_damaged_lines_of_a_log_are_counted(runs: list[Path], tmp_path: Path) -> None:
    assert "lines of the log left out, damaged" not in dict(rows(compare(runs)))
    cut = Path(shutil.copytree(runs[0], tmp_path / "cut"))
    log = cut / "metrics.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"loss"', b'"los', 2))
    found = dict(rows(compare([cut, runs[1]])))
    assert found["lines of the log left out, damaged"] == ["2", "0"]


@pytest.mark.long
def test_damaged_times_are_accepted(runs: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "cell"
    shutil.copytree(runs[0], folder)
    for text in ("{bad", '{"a": 1}'):
        (folder / "seconds.json").write_text(text)
        assert compare([folder, runs[1]]).runs[0].seconds is not None


def test_compare_rejects_other_folders(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run folder: no config"):
        compare([tmp_path])
    with pytest.raises(InputError, match="nothing is there"):
        compare([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(InputError, match=r"no config\.json"):
        compare([tmp_path, tmp_path / "b"])


def test_the_best_of_runs_by_other_metrics_is_named() -> None:
    facts = {"folder": "", "parameters": 1, "flops": None, "steps": 1, "tokens": 1, "seconds": 1.0}
    runs = [
        Facts(name="a", metric="accuracy", best=83.0, best_step=10, last_loss=None, **facts),
        Facts(name="b", metric="loss", best=0.5, best_step=30, last_loss=None, **facts),
    ]
    table = dict(rows(Comparison(runs=runs, fields={})))
    assert table["best"] == ["accuracy 83 (step 10)", "loss 0.5 (step 30)"]
    assert (
        dict(rows(Comparison(runs=runs[:1] * 2, fields={})))["best accuracy"][0] == "83 (step 10)"
    )
