"""A work: what is measured, who does it, and what we must reach."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from addnorm.bench.contender import Contender, Cost, Run
from addnorm.bench.targets import Target


@dataclass(frozen=True, kw_only=True)
class Work:
    """One work: `figure` is what its table shows (see `Outcome.figures`), in `unit`.

    `prepare` writes what the contenders share, such as weights, into a folder they are all given.
    """

    name: str
    description: str
    unit: str
    contenders: tuple[Contender, ...]
    targets: tuple[Target, ...] = ()
    figure: str = "speed"
    details: tuple[str, ...] = ()
    prepare: Callable[[Path], Run] | None = None


def contender(
    name: str,
    build: Callable[..., Run],
    *needs: str,
    cost: Cost | None = None,
    warm_up: bool = True,
    **options: Any,
) -> Contender:
    """The contender that `build` makes with these options, if the packages it needs are there."""
    made = partial(build, **options)
    return Contender(name=name, build=made, needs=needs, cost=cost, warm_up=warm_up)
