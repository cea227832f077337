"""A benchmark: what is measured, who does it, and what we must reach."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from addnorm.bench.implementation import Cost, Implementation, Run
from addnorm.bench.targets import Target


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark: `figure` is what its table shows (see `Outcome.figures`), in `unit`.

    `prepare` writes what the implementations share, such as weights, into a folder that all are
    given.
    """

    name: str
    description: str
    unit: str
    implementations: tuple[Implementation, ...]
    targets: tuple[Target, ...] = ()
    figure: str = "speed"
    details: tuple[str, ...] = ()
    prepare: Callable[[Path], Run] | None = None


def implementation(
    name: str,
    build: Callable[..., Run],
    *needs: str,
    cost: Cost | None = None,
    warm_up: bool = True,
    **options: Any,
) -> Implementation:
    """The implementation that `build` makes with these options."""
    made = partial(build, **options)
    return Implementation(name=name, build=made, needs=needs, cost=cost, warm_up=warm_up)
