"""Fake implementations for tests, at module level so that another process can import them."""

import os
import sys
import time
from itertools import count
from pathlib import Path

from addnorm.bench.benchmark import Benchmark, Goal, Limit, Ratio
from addnorm.bench.implementation import Implementation, Round, Run, implementation


def steady(folder: Path, *, seconds: float = 1.0) -> Run:
    """Ten units a round, whatever the clock says."""
    assert folder.is_dir()
    return lambda: Round(seconds, 10, {"detail": 7.0})


def machine(_: Path) -> Run:
    """A machine that does 100 FLOP/s in every type, and reads 40 bytes/s."""
    return lambda: Round(1.0, 1, {"f32": 100.0, "bf16": 100.0, "int8": 100.0, "read": 40.0})


def written(folder: Path) -> Run:
    """What a benchmark prepares."""
    (folder / "prepared").write_text("10")
    return lambda: Round(1.0, 1)


def reader(folder: Path) -> Run:
    """As many units as was prepared."""
    units = float((folder / "prepared").read_text())
    return lambda: Round(1.0, units)


def unbuildable(_: Path) -> Run:
    """Raises an error of several lines."""
    raise RuntimeError("no such kernel\nand more on it")


def tiring(_: Path, *, rounds: int) -> Run:
    """Raises after so many rounds, the first to warm up included."""
    done = count()

    def run() -> Round:
        if next(done) >= rounds:
            raise ValueError("tired")
        return Round(1.0, 1)

    return run


def dying(_: Path) -> Run:
    """Ends its process without a word to the parent."""

    def run() -> Round:
        print("fatal: out of luck", file=sys.stderr, flush=True)
        os._exit(3)

    return run


def silent(_: Path) -> Run:
    """Takes longer than anybody waits."""

    def run() -> Round:
        time.sleep(60)
        return Round(60.0, 1)

    return run


def process(_: Path) -> Run:
    """Says the number of its process."""
    return lambda: Round(1.0, 1, {"process": float(os.getpid())})


MACHINE = Implementation(name="machine", build=machine)

BENCHMARK = Benchmark(
    name="fake-work",
    description="ten units a round",
    unit="units/s",
    implementations=(
        implementation("ours", steady, seconds=0.5),
        implementation("peer", steady, seconds=1.0),
        implementation("absent", steady, "no_such_package"),
        implementation("broken", unbuildable),
    ),
    targets=(
        Ratio(ours=("ours",), peers=("peer", "absent"), goal=Goal(must=1.5, aim=3.0)),
        Ratio(ours=("ours",), peers=("absent",), goal=Goal(must=1.0)),
        Limit(ours=("ours",), figure="detail", goal=Goal(must=6.0, at_most=True)),
    ),
    details=("detail",),
)
