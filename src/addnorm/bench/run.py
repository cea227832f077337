"""Running a benchmark: preparation, alternating rounds, comparison with targets."""

import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Protocol, runtime_checkable

from addnorm.bench.benchmark import Benchmark, Outcome, TargetResult
from addnorm.bench.ceiling import MACHINE
from addnorm.bench.implementation import Failed, Implementation, Round, Worker
from addnorm.errors import InputError
from addnorm.machine import cores, processor

PACKAGES = (
    "addnorm",
    "torch",
    "transformers",
    "x-transformers",
    "litgpt",
    "joeynmt",
    "ctranslate2",
    "llama-cpp-python",
    "numpy",
)
PAUSE = 0.3
"""Seconds before each turn, since OpenMP threads spin for up to 0.2 s after their last work."""

Watch = Callable[[str], object]
"""A callback with progress messages."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a benchmark."""

    benchmark: Benchmark
    rounds: int
    outcomes: Mapping[str, Outcome]
    machine: Outcome
    target_results: Sequence[TargetResult]
    command: str


def bench(benchmark: Benchmark, rounds: int, *, watch: Watch = lambda _: None) -> Result:
    """Measure all installed implementations of a benchmark, and the machine's ceilings."""
    with tempfile.TemporaryDirectory(prefix="addnorm-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        if benchmark.prepare is not None:
            watch("preparing")
            prepare = Worker(Implementation(name="prepare", build=benchmark.prepare), folder)
            with closing(prepare):
                try:
                    prepare.round()
                except Failed as error:
                    raise InputError(f"{benchmark.name} could not be prepared: {error}") from error
        installed = [i for i in (MACHINE, *benchmark.implementations) if not i.missing]
        workers = {i.name: stack.enter_context(closing(Worker(i, folder))) for i in installed}
        outcomes = alternate(
            workers,
            rounds,
            pause=PAUSE,
            watch=lambda i, name: watch(f"round {i + 1} of {rounds}: {name}"),
        )
    machine = outcomes.pop(MACHINE.name)
    every = {i.name: measured(i, outcomes, machine) for i in benchmark.implementations}
    target_results = [target.evaluate(every) for target in benchmark.targets]
    return Result(
        benchmark=benchmark,
        rounds=rounds,
        outcomes=every,
        machine=machine,
        target_results=target_results,
        command=f"addnorm bench {benchmark.name} --rounds {rounds}",
    )


@runtime_checkable
class Runner(Protocol):
    """An object that runs rounds; it may raise `Failed`."""

    def round(self) -> Round: ...


def alternate(
    runners: Mapping[str, Runner],
    rounds: int,
    *,
    pause: float = 0.0,
    watch: Callable[[int, str], object] = lambda _, __: None,
) -> dict[str, Outcome]:
    """Run `rounds` alternating rounds of each runner, each time starting with another one.

    A runner that fails is dropped, with its earlier rounds. The pause of `pause` seconds before
    each turn lets the threads of the previous runner go to sleep.
    """
    outcomes = {name: Outcome(name=name) for name in runners}
    for number in range(rounds):
        names = list(runners)
        first = number % len(names) if names else 0
        for name in names[first:] + names[:first]:
            outcome = outcomes[name]
            if outcome.problem:
                continue
            watch(number, name)
            time.sleep(pause)
            try:
                outcome.rounds.append(runners[name].round())
            except Failed as error:
                outcome.problem, outcome.rounds = str(error), []
    return outcomes


def measured(
    implementation: Implementation, outcomes: Mapping[str, Outcome], machine: Outcome
) -> Outcome:
    """The outcome of an implementation, with its fraction of the ceiling in each round."""
    if implementation.name not in outcomes:
        return Outcome(name=implementation.name, problem=f"not installed: {implementation.missing}")
    outcome, cost = outcomes[implementation.name], implementation.cost
    if cost is None or outcome.problem or machine.problem:
        return outcome
    rates = zip(outcome.rounds, outcome.figures("speed"), machine.rounds, strict=True)
    rounds = [
        replace(
            r, details={**r.details, "fraction": speed * cost.per_unit / m.details[cost.ceiling]}
        )
        for r, speed, m in rates
    ]
    return replace(outcome, rounds=rounds)


def facts() -> dict[str, object]:
    """The machine, date and package versions of a measurement."""
    return {
        "date": date.today().isoformat(),
        "machine": {
            "processor": processor(),
            "cores": cores(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": sys.version.split()[0],
        },
        "versions": {name: number for name in PACKAGES if (number := installed(name))},
    }


def installed(package: str) -> str | None:
    """The version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
