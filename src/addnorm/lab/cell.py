"""One cell of a study: a variant trained with one seed, in a process of its own.

What a cell is told and what it answers are plain values, so that they can be sent to another
machine and written as JSON.
"""

import json
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from addnorm.atomic import atomic_write
from addnorm.errors import InputError
from addnorm.files import read_file

FIGURES = "figures.json"
"""What a finished cell measured."""

MOST = 2**30

State = Literal["finished", "diverged", "paused"]
"""Trained to its end; stopped by a number that is not finite; stopped before its end, for now."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell to train: its recipe as a tree, its folder, and all else that decides its result.

    Paths in the recipe are relative to `directory`. `until` is the step at which it pauses, for
    now; None for its last one.
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
    """What a cell measured on `split`: `scores` by name, and what it cost.

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
    """In a file, the folder that these are of: those of another one are not believed."""
    values: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    texts: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])


FIGURES_OF = TypeAdapter(Figures)


def run_cell(job: Job) -> Figures:
    """Train the cell, or go on where it was, and measure it; a finished one is only read.

    Raises `InputError` for what is wrong with its recipe or data.
    """
    folder = Path(job.folder)
    file = folder / (FIGURES if job.until is None else f"figures-{job.until}.json")
    for one in (file, folder / FIGURES):
        if (kept := read_figures(one)) is not None:
            return kept
    os.chdir(job.directory)
    prepare_process(job.threads, job.imports)
    from addnorm.lab.training import train_cell

    found = train_cell(job)
    ended = found.state != "paused"
    write_figures(folder / FIGURES if ended else file, found)
    if ended:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return found


def read_figures(file: Path) -> Figures | None:
    """The figures of a cell; None where there are none, or the file is damaged or another's."""
    try:
        found = FIGURES_OF.validate_json(read_file(file, MOST))
    except (OSError, ValidationError, InputError):
        return None
    return replace(found, cell="") if found.cell in ("", file.parent.name) else None


def last_figures(folder: Path) -> Figures | None:
    """The figures of a cell's end, or else of where it paused last; None where there are none."""
    paused = (read_figures(file) for file in folder.glob("figures-*.json"))
    known = sorted((one for one in paused if one is not None), key=lambda one: one.steps)
    return read_figures(folder / FIGURES) or (known[-1] if known else None)


def write_figures(file: Path, found: Figures) -> None:
    """Write the figures of a cell."""
    tree = FIGURES_OF.dump_python(replace(found, cell=file.parent.name), mode="json")
    atomic_write(file, json.dumps(tree, ensure_ascii=False))


_imported: dict[str, list[str]] = {}


def prepare_process(threads: int, imports: tuple[str, ...]) -> None:
    """Give this process its threads, and import the parts of a person's own.

    Raises `InputError` for a part that has changed since a worker of a cluster imported it.
    """
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)
    import torch

    torch.set_num_threads(threads)
    if imports:
        from addnorm.lab.digest import digests_of_module
        from addnorm.runs.imports import import_parts

        import_parts(imports)
        for name in imports:
            text = digests_of_module(name)
            if _imported.setdefault(name, text) != text:
                raise InputError(
                    f"{name} has changed since a worker of the cluster imported it: start the "
                    "workers again"
                )
