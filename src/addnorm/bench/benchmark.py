"""The definition of a benchmark: the measurement, the implementations and the targets."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from addnorm.bench.implementation import Cost, Implementation, Run
from addnorm.bench.targets import Target


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One benchmark; `figure` is the metric in its table (see `Outcome.figures`), in `unit`.

    `prepare` writes data that the implementations share, such as weights, to a common folder.
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
    """An implementation that is built by `build` with these options."""
    made = partial(build, **options)
    return Implementation(name=name, build=made, needs=needs, cost=cost, warm_up=warm_up)
