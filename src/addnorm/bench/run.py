"""Run a work: prepare it, let the contenders take turns, and judge what they did."""

import platform
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from addnorm.bench.ceiling import MACHINE
from addnorm.bench.contender import Contender, Failed, Worker, cores
from addnorm.bench.rounds import Outcome, alternate
from addnorm.bench.targets import Verdict
from addnorm.bench.work import Work
from addnorm.errors import InputError

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
"""Seconds before each turn: threads of OpenMP spin for up to 0.2 s after their last work."""

Watch = Callable[[str], object]
"""Told what is being done."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a work came to."""

    work: Work
    rounds: int
    outcomes: Mapping[str, Outcome]
    machine: Outcome
    verdicts: Sequence[Verdict]
    command: str


def bench(work: Work, rounds: int, *, watch: Watch = lambda _: None) -> Result:
    """Measure all contenders of a work that are installed, and the machine itself."""
    with tempfile.TemporaryDirectory(prefix="addnorm-bench-") as made, ExitStack() as stack:
        folder = Path(made)
        if work.prepare is not None:
            watch("preparing")
            prepare = Worker(Contender(name="prepare", build=work.prepare), folder)
            with closing(prepare):
                try:
                    prepare.round()
                except Failed as error:
                    raise InputError(f"{work.name} could not be prepared: {error}") from error
        here = [one for one in (MACHINE, *work.contenders) if not one.missing]
        workers = {c.name: stack.enter_context(closing(Worker(c, folder))) for c in here}
        outcomes = alternate(
            workers,
            rounds,
            pause=PAUSE,
            watch=lambda i, name: watch(f"round {i + 1} of {rounds}: {name}"),
        )
    machine = outcomes.pop(MACHINE.name)
    every = {c.name: measured(c, outcomes, machine) for c in work.contenders}
    verdicts = [target.judge(every) for target in work.targets]
    return Result(
        work=work,
        rounds=rounds,
        outcomes=every,
        machine=machine,
        verdicts=verdicts,
        command=f"addnorm bench {work.name} --rounds {rounds}",
    )


def measured(contender: Contender, outcomes: Mapping[str, Outcome], machine: Outcome) -> Outcome:
    """The outcome of a contender, each round with its fraction of that round's ceiling."""
    if contender.name not in outcomes:
        return Outcome(name=contender.name, problem=f"not installed: {contender.missing}")
    outcome, cost = outcomes[contender.name], contender.cost
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
    """The machine, the day and the versions that figures are true of."""
    return {
        "date": date.today().isoformat(),
        "machine": {
            "processor": processor(),
            "cores": cores(),
            "system": f"{platform.system()} {platform.machine()}",
            "python": sys.version.split()[0],
        },
        "versions": {name: found for name in PACKAGES if (found := installed(name))},
    }


def processor() -> str:
    """What the processor calls itself, with the widest vectors that it knows."""
    try:
        text = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*: (.*)$", text, re.MULTILINE)
    known = set(flags[1].split()) if flags else set[str]()
    vectors = [x for x in ("amx_tile", "avx512_bf16", "avx512f", "avx2") if x in known][:1]
    return ", ".join([name[1] if name else platform.machine(), *vectors])


def installed(package: str) -> str | None:
    """The version of a package, if it is there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
