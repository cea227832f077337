"""The table and the JSON contain all results."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from tests.bench import fakes

from addnorm.bench import report
from addnorm.bench.benchmark import Outcome
from addnorm.bench.implementation import Round
from addnorm.bench.run import Result
from addnorm.machine import file_name, processor


def result(*, machine: Outcome | None = None) -> Result:
    def speeds(name: str, *values: float) -> Outcome:
        details = {"detail": 7.0, "peak_mib": 2000.0, "fraction": 0.5}
        return Outcome(name=name, rounds=[Round(1.0, v, details) for v in values])

    outcomes = {
        "ours": speeds("ours", 30.0, 20.0),
        "peer": speeds("peer", 10.0, 10.0),
        "absent": Outcome(name="absent", problem="not installed: no_such_package"),
    }
    rates = fakes.machine(Path())()
    return Result(
        benchmark=fakes.BENCHMARK,
        rounds=2,
        outcomes=outcomes,
        machine=machine or Outcome(name="machine", rounds=[rates, rates]),
        target_results=[target.evaluate(outcomes) for target in fakes.BENCHMARK.targets],
        command="addnorm bench fake-work --rounds 2",
    )


def shown(what: Result) -> list[str]:
    console = Console(width=120, record=True, highlight=False, file=StringIO())
    report.show(what, console)
    return [" ".join(line.split()) for line in console.export_text().splitlines()]


def test_the_table() -> None:
    lines = shown(result())
    assert lines[0] == "fake-work: ten units a round; in units/s"
    assert "ours 25 20…30 50% 2,000 7" in lines
    assert "absent: not installed: no_such_package" in lines
    assert "ours : peer ≥ 1.5 ≥ 3 2.5 2…3 met" in lines
    assert "no figures of absent ≥ 1 not measured" in lines
    assert "ours, detail ≤ 6 7 7…7 not met" in lines
    assert any(line.startswith("ceilings: f32 product") for line in lines)


def test_a_failed_machine_is_reported() -> None:
    broken = Outcome(name="machine", problem="RuntimeError: hot")
    assert "ceilings: RuntimeError: hot" in shown(result(machine=broken))
    assert report.as_json(result(machine=broken))["ceilings"] == "RuntimeError: hot"


def test_the_json(tmp_path: Path) -> None:
    file = report.write(result(), tmp_path / "new")
    assert file == tmp_path / "new" / f"bench-fake-work-{file_name(processor())}.json"
    found = json.loads(file.read_text("utf-8"))
    assert list(found) == [
        "work", "description", "unit", "command", "date", "machine", "versions", "rounds",
        "ceilings", "contenders", "targets",
    ]  # fmt: skip
    assert found["ceilings"]["read"]["median"] == 40.0
    ours, _, absent = found["contenders"]
    assert ours["name"] == "ours"
    assert (ours["median"], ours["low"], ours["high"]) == (25.0, 20.0, 30.0)
    assert ours["rounds"] == [30.0, 20.0]
    assert ours["peak_mib"]["median"] == 2000.0
    assert absent == {"name": "absent", "problem": "not installed: no_such_package"}
    met, unmeasured, _ = found["targets"]
    assert met == {
        "target": "ours : peer",
        "must": 1.5,
        "aim": 3.0,
        "at_most": False,
        "measured": {"median": 2.5, "low": 2.0, "high": 3.0},
        "met": "must",
    }
    assert unmeasured["measured"] is None


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12,346"), (1.2345, "1.23"), (0.0123, "0.0123"), (99.96, "100")]
)
def test_numbers(value: float, text: str) -> None:
    assert report.number(value) == text
