"""`addnorm bench`: its list, its error messages, and a benchmark of fakes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.bench import fakes

from addnorm.bench import benchmarks, run

Command = Callable[..., tuple[int, str, str]]


def test_the_list(addnorm: Command) -> None:
    code, out, _ = addnorm("bench", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        benchmark.name for benchmark in benchmarks.BENCHMARKS
    ]
    assert addnorm("bench", "decode", "--list")[1].startswith("decode  GPT-2 small")


def test_a_work_is_measured_and_kept(
    addnorm: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "MACHINE", fakes.MACHINE)
    monkeypatch.setattr(run, "PAUSE", 0.0)
    monkeypatch.setattr(benchmarks, "BENCHMARKS", (fakes.BENCHMARK,))
    code, out, _ = addnorm("bench", "--rounds", 1, "--out", tmp_path)
    assert code == 0
    assert "absent: not installed: no_such_package" in out
    assert "broken: RuntimeError: no such kernel" in out
    found = json.loads(next(tmp_path.glob("bench-fake-work-*.json")).read_text("utf-8"))
    assert found["command"] == "addnorm bench fake-work --rounds 1"
    assert found["targets"][0]["met"] == "must"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["dekode"], "Did you mean 'decode'?"),
        (["decode", "--rounds", "0"], "--rounds"),
        (["--ruonds", "1"], "Did you mean '--rounds'?"),
    ],
)
def test_mistakes(words: list[str], expected: str, addnorm: Command) -> None:
    code, out, err = addnorm("bench", *words)
    assert (code, out) == (2, "")
    assert expected in err
    assert err.count("\n") == 1
