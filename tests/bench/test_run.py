"""A benchmark from preparation to results, each implementation in its own process."""

from dataclasses import replace

import pytest
from tests.bench import fakes

from addnorm.bench import run
from addnorm.bench.implementation import Cost, implementation
from addnorm.bench.rounds import Spread
from addnorm.bench.run import bench, facts, installed
from addnorm.errors import InputError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MACHINE", fakes.MACHINE)
    monkeypatch.setattr(run, "PAUSE", 0.0)


def test_everyone_is_accounted_for() -> None:
    progress: list[str] = []
    result = bench(fakes.BENCHMARK, 2, watch=progress.append)
    assert list(result.outcomes) == ["ours", "peer", "absent", "broken"]
    assert len(result.outcomes["ours"].rounds) == 2
    assert result.outcomes["absent"].problem == "not installed: no_such_package"
    assert result.outcomes["broken"].problem == "RuntimeError: no such kernel"
    first, second, third = result.target_results
    assert (first.comparison, first.value, first.met) == (
        "ours : peer",
        Spread(2.0, 2.0, 2.0),
        "must",
    )
    assert (second.comparison, second.met) == ("no figures of absent", "not measured")
    assert (third.value, third.met) == (Spread(7.0, 7.0, 7.0), "not met")
    assert progress[0] == "round 1 of 2: machine"
    assert result.command == "addnorm bench fake-work --rounds 2"


def test_what_is_prepared_and_the_fraction_of_the_ceiling() -> None:
    reads = implementation("reads", fakes.reader, cost=Cost("read", 2.0))
    benchmark = replace(
        fakes.BENCHMARK, implementations=(reads,), targets=(), prepare=fakes.written
    )
    [outcome] = bench(benchmark, 1).outcomes.values()
    assert outcome.figures("fraction") == [10.0 * 2.0 / 40.0]


def test_a_preparation_that_fails_is_a_message() -> None:
    benchmark = replace(fakes.BENCHMARK, prepare=fakes.unbuildable)
    with pytest.raises(InputError, match=r"^fake-work could not be prepared: .*no such kernel$"):
        bench(benchmark, 1)


def test_a_machine_that_fails_leaves_no_fractions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MACHINE", replace(fakes.MACHINE, build=fakes.unbuildable))
    ours = implementation("ours", fakes.steady, cost=Cost("f32", 2.0))
    result = bench(replace(fakes.BENCHMARK, implementations=(ours,), targets=()), 1)
    assert result.machine.problem
    assert result.outcomes["ours"].figures("fraction") == []


def test_facts_name_the_machine_and_the_versions() -> None:
    found = facts()
    assert set(found) == {"date", "machine", "versions"}
    assert found["machine"]["processor"]
    assert {"addnorm", "torch"} <= set(found["versions"])
    assert installed("no-such-package") is None
