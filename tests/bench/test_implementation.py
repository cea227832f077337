"""Worker processes answer round by round, and every kind of failure is reported."""

import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from tests.bench import fakes

from addnorm.bench.implementation import (
    Failed,
    Implementation,
    Round,
    Run,
    Worker,
    held_mib,
    one_line,
    peak_mib,
    started,
    timed,
)


def rounds(build: Callable[[Path], Run], folder: Path, n: int, **options: float) -> list[Round]:
    implementation = Implementation(name="c", build=build)
    with closing(Worker(implementation, folder, **options)) as worker:
        return [worker.round() for _ in range(n)]


def test_it_runs_elsewhere_and_stays_there(tmp_path: Path) -> None:
    one, two = rounds(fakes.process, tmp_path, 2)
    assert one.details["process"] == two.details["process"] != os.getpid()
    assert 1 < one.details["peak_mib"] < 4096


def test_a_worker_that_never_had_a_turn_closes(tmp_path: Path) -> None:
    assert rounds(fakes.process, tmp_path, 0) == []


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (fakes.unbuildable, r"^RuntimeError: no such kernel$"),
        (partial(fakes.tiring, rounds=2), r"^ValueError: tired$"),
        (fakes.dying, r"^ended with exit status 3: fatal: out of luck$"),
    ],
)
def test_a_failure_is_one_line(build: Callable[[Path], Run], message: str, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=message):
        rounds(build, tmp_path, 2)


def test_a_silent_worker_times_out(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"^gave no answer within 0.5 s$"):
        rounds(fakes.silent, tmp_path, 1, patience=0.5)


def test_missing_packages_are_named() -> None:
    assert Implementation(name="c", build=fakes.process, needs=("json",)).missing == ""
    absent = Implementation(name="c", build=fakes.process, needs=("json", "no_such_package"))
    assert absent.missing == "no_such_package"


def test_steps_repeat_until_the_time_is_up() -> None:
    steps: list[int] = []
    run = timed(lambda: steps.append(1), 5.0, at_least=0.01)
    done = run()
    assert done.seconds >= 0.01
    assert done.units == 5.0 * len(steps)
    assert timed(lambda: steps.append(1), 5.0, at_least=0.0)().units == 5.0


def test_facts_of_this_process() -> None:
    assert 1 < held_mib() <= peak_mib() + 1
    assert one_line(KeyError()) == "KeyError"


def test_a_round_is_a_process(tmp_path: Path) -> None:
    done = started(tmp_path, statement=f"open({str(tmp_path / 'ran')!r}, 'w')")()
    assert (tmp_path / "ran").exists()
    assert done.units == 1
    assert 0 < done.seconds < 60
    assert done.details["peak_mib"] > 1


def test_one_that_fails(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError):
        started(tmp_path, statement="raise SystemExit(3)")()
