"""A benchmark from preparation to results, each implementation in its own process."""

from dataclasses import replace
from itertools import count

import pytest
from tests.bench import fakes

from addnorm.bench import run
from addnorm.bench.benchmark import Spread
from addnorm.bench.implementation import Cost, Failed, Round, implementation
from addnorm.bench.run import alternate, bench, facts, installed
from addnorm.errors import InputError


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MACHINE", fakes.MACHINE)
    monkeypatch.setattr(run, "PAUSE", 0.0)


def test_every_implementation_has_an_outcome() -> None:
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


def test_implementations_read_prepared_data_and_have_fractions() -> None:
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


class Noted:
    """Notes every turn; fails from one of them on, if at all."""

    def __init__(self, name: str, turns: list[str], *, fails_at: int = 99) -> None:
        self.name, self.turns, self.fails_at, self.done = name, turns, fails_at, count()

    def round(self) -> Round:
        number = next(self.done)
        self.turns.append(self.name)
        if number >= self.fails_at:
            raise Failed("out of breath")
        return Round(seconds=1.0, units=number + 1.0)


def test_runners_alternate_with_a_rotating_start() -> None:
    turns: list[str] = []
    outcomes = alternate({name: Noted(name, turns) for name in "abc"}, 4)
    assert turns == list("abcbcacababc")
    assert [r.units for r in outcomes["b"].rounds] == [1.0, 2.0, 3.0, 4.0]


def test_a_failing_runner_is_dropped() -> None:
    turns: list[str] = []
    runners = {"a": Noted("a", turns), "b": Noted("b", turns, fails_at=1)}
    seen: list[tuple[int, str]] = []
    outcomes = alternate(runners, 3, watch=lambda i, name: seen.append((i, name)))
    assert turns == list("abbaa")
    assert seen == list(zip([0, 0, 1, 1, 2], turns, strict=True))
    assert (outcomes["b"].problem, outcomes["b"].rounds) == ("out of breath", [])
    assert len(outcomes["a"].rounds) == 3


def test_alternate_accepts_no_runners() -> None:
    assert alternate({}, 3) == {}
