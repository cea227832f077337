"""A cell of a study, a variant trained with one seed: the job, and the figures that it gives.

Both are plain values, so that they can be sent to another machine and written as JSON. `worker`
trains them.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from addnorm.atomic import atomic_write
from addnorm.errors import InputError
from addnorm.files import read_file

FIGURES = "figures.json"
"""The file with the figures of a finished cell."""

MOST = 2**30

State = Literal["finished", "diverged", "paused"]
"""Trained to the end; stopped by NaN or an infinite number; stopped before the end, to be resumed.
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell to train: its recipe as a tree, its folder, and everything else that it depends on.

    Paths in the recipe are relative to `directory`. `until` is the step at which it pauses; None
    for training to the end.
    """

    recipe: dict[str, Any]
    folder: str
    directory: str
    threads: int
    kernels: dict[str, Any]
    imports: tuple[str, ...] = ()
    until: int | None = None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The scores of a cell on `split`, by name, and what it cost.

    `values` has those of single examples where a score is their mean, or of stretches of so many
    `windows` of a series; the numbers of the `examples`; and `loss` and `targets` of batches.
    `texts` has translations and their references. `seconds` is the time in which it was
    trained, breaks left out.
    """

    state: State
    split: Literal["valid", "test"]
    scores: dict[str, float]
    steps: int
    tokens: int
    seconds: float
    parameters: int = 0
    problem: str = ""
    cell: str = ""
    """In a file, the name of the cell's folder: figures copied from another folder are ignored."""
    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    texts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


FIGURES_OF = TypeAdapter(Figures)


def figures_file(folder: Path, until: int | None) -> Path:
    """The file with the figures of a cell's end, or of its pause at step `until`."""
    return folder / (FIGURES if until is None else f"figures-{until}.json")


def figures_of(folder: Path, until: int | None) -> Figures | None:
    """The figures of a cell that paused at step `until`, or that has ended; None without either."""
    return read_figures(figures_file(folder, until)) or read_figures(folder / FIGURES)


def last_figures(folder: Path) -> Figures | None:
    """The figures of a cell's end, or else of its last pause; None without either."""
    pauses = (read_figures(file) for file in folder.glob("figures-*.json"))
    ordered = sorted((figures for figures in pauses if figures), key=lambda figures: figures.steps)
    return read_figures(folder / FIGURES) or (ordered[-1] if ordered else None)


def read_figures(file: Path) -> Figures | None:
    """The figures in a file; None if it is missing, damaged or of another cell."""
    try:
        figures = FIGURES_OF.validate_json(read_file(file, MOST))
    except (OSError, ValidationError, InputError):
        return None
    return replace(figures, cell="") if figures.cell in ("", file.parent.name) else None


def write_figures(file: Path, figures: Figures) -> None:
    """Write the figures of a cell."""
    tree = FIGURES_OF.dump_python(replace(figures, cell=file.parent.name), mode="json")
    atomic_write(file, json.dumps(tree, ensure_ascii=False))
