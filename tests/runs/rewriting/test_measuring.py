"""Speeds are tokens a second, by the number of texts, of models in turn."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from addnorm.runs.rewriting import measuring
from addnorm.runs.rewriting.measuring import writing_speeds
from addnorm.runs.run import Run


@pytest.mark.long
@pytest.mark.parametrize("task", ["language", "translation", "classification"])
def test_speeds_by_the_clock(
    task: str, run_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that adds one second at each look: a turn takes one second."""
    run = Run.open(run_of(task))
    times = iter(range(10_000))
    monkeypatch.setattr(measuring, "perf_counter", lambda: float(next(times)))
    speeds = writing_speeds(run, {"one": run.model, "other": run.model})
    assert speeds == {"one": {1: 32.0, 16: 512.0}, "other": {1: 32.0, 16: 512.0}}


def test_what_reads_no_text_has_no_speed(run_of: Callable[[str], Path]) -> None:
    run = replace(Run.open(run_of("classification")), text=None)
    assert writing_speeds(run, {"one": run.model}) == {"one": {}}
