"""A cell of a study: a variant trained with one seed, its job, its figures, its training.

Jobs and figures are plain values, so that they can be sent to another machine and written as JSON;
a process started for it trains the cell.
"""

import json
import os
import shutil
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from addnorm.atomic import atomic_write
from addnorm.data.examples import Captioned, Example, Pair, Transcribed, target_text
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.forecast_windows import ForecastWindows
from addnorm.errors import InputError, Interrupted, NonFiniteError
from addnorm.files import read_file
from addnorm.lab.digest import digests_of_module
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.runs.evaluation import Evaluation, data_of, evaluated, usual_split
from addnorm.runs.files.folder import is_finished, read_settings
from addnorm.runs.files.weights import count_parameters
from addnorm.runs.recipes.custom_parts import import_parts
from addnorm.runs.recipes.recipe import check_recipe
from addnorm.runs.run import Run
from addnorm.runs.train.train_run import count, train_run
from addnorm.training.loggers import read_journal

FIGURES = "figures.json"
"""The file with the figures of a finished cell."""

MOST = 2**30

State = Literal["finished", "diverged", "paused"]
"""Trained to the end; stopped by NaN or an infinite number; stopped before the end, to be resumed.
"""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A cell to train: its recipe as a tree, its folder, and all other inputs.

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
    """The scores of a cell on `split`, by name, and its cost.

    `values` has the scores of single examples where a score is their mean, or of stretches of so
    many `windows` of a series; the numbers of the `examples`; and `loss` and `targets` of batches.
    `texts` has translations and their references. `seconds` is the time of training, without
    breaks.
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
    """The file with a cell's figures at its end, or at its pause at step `until`."""
    return folder / (FIGURES if until is None else f"figures-{until}.json")


def figures_of(folder: Path, until: int | None) -> Figures | None:
    """The figures of a cell at its end, or at its pause at step `until`; None if it has none."""
    return read_figures(figures_file(folder, until)) or read_figures(folder / FIGURES)


def last_figures(folder: Path) -> Figures | None:
    """The figures at a cell's end, or else at its last pause; None if it has none."""
    pauses = (read_figures(file) for file in folder.glob("figures-*.json"))
    ordered = sorted((figures for figures in pauses if figures), key=lambda figures: figures.steps)
    return read_figures(folder / FIGURES) or (ordered[-1] if ordered else None)


def read_figures(file: Path) -> Figures | None:
    """Read the figures in a file; None if it is missing, damaged or another cell's."""
    try:
        figures = FIGURES_OF.validate_json(read_file(file, MOST))
    except (OSError, ValidationError, InputError):
        return None
    return replace(figures, cell="") if figures.cell in ("", file.parent.name) else None


def write_figures(file: Path, figures: Figures) -> None:
    """Write the figures of a cell."""
    tree = FIGURES_OF.dump_python(replace(figures, cell=file.parent.name), mode="json")
    atomic_write(file, json.dumps(tree, ensure_ascii=False))


LOG = "train.log"
TIMES = "seconds.json"
"""The seconds of each stretch of training, separate because equal runs differ in them."""
TIMES_OF = TypeAdapter(list[float])


def run_cell(job: Job) -> Figures:
    """Train a cell or resume it, and measure it, unless its figures exist already.

    Raises `InputError` for a mistake in its recipe or data.
    """
    folder = Path(job.folder)
    if (figures := figures_of(folder, job.until)) is not None:
        return figures
    os.chdir(job.directory)
    prepare_process(job.threads, job.imports)
    figures = train_cell(job)
    ended = figures.state != "paused"
    write_figures(figures_file(folder, None if ended else job.until), figures)
    if ended:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return figures


_digests_of_imports: dict[str, list[str]] = {}


def prepare_process(threads: int, imports: tuple[str, ...]) -> None:
    """Set this process's number of threads, and import custom parts.

    Raises `InputError` for a part that has changed since a worker of a cluster imported it.
    """
    torch.set_num_threads(threads)
    import_parts(imports)
    for name in imports:
        digests = digests_of_module(name)
        if _digests_of_imports.setdefault(name, digests) != digests:
            raise InputError(
                f"{name} has changed since a worker of the cluster imported it: start the "
                "workers again"
            )


def train_cell(job: Job) -> Figures:
    """Train a cell to its end or pause, and measure it on its test split.

    Without a test split, it is measured on its validation split. Raises `InputError` for a
    mistake in its recipe or data, and for any other failure in training, with the file that has
    the traceback.
    """
    folder = Path(job.folder)
    folder.mkdir(parents=True, exist_ok=True)
    recipe = check_recipe(job.recipe, lambda path: ".".join(path) or "recipe", from_file=True)
    with (folder / LOG).open("a", encoding="utf-8") as log:
        console = Console(file=log, width=100)
        with use_choices(KernelChoices(**job.kernels)):
            begun = time.perf_counter()
            try:
                run = train_run(recipe, folder, resume=True, console=console, until=job.until)
            except NonFiniteError as error:
                return Figures(
                    state="diverged",
                    split="valid",
                    scores={},
                    parameters=count_parameters(*read_settings(folder)),
                    problem=str(error),
                    **_cost(folder, time.perf_counter() - begun),
                )
            except (InputError, Interrupted):
                raise
            except Exception as error:  # most often in a custom part
                log.write(traceback.format_exc())
                problem = f"{type(error).__name__}: {error}"
                raise InputError(f"{problem} (where it happened is in {folder / LOG})") from error
            cost = _cost(folder, time.perf_counter() - begun)
            return _measured(run, cost, paused=not is_finished(folder))


def _cost(folder: Path, seconds: float) -> dict[str, Any]:
    """Return the steps, tokens and seconds of all its training so far."""
    times = [*training_times(folder), round(seconds, 3)]
    atomic_write(folder / TIMES, json.dumps(times))
    steps = [line for line in read_journal(folder / "metrics.jsonl").lines if "loss" in line]
    return {
        "steps": int(steps[-1]["step"]) if steps else 0,
        "tokens": int(sum(line["tokens"] for line in steps)),
        "seconds": sum(times),
    }


def training_times(folder: Path) -> list[float]:
    """The seconds of each stretch of training; empty if the file is missing or damaged."""
    try:
        return TIMES_OF.validate_json((folder / TIMES).read_bytes())
    except (OSError, ValidationError):
        return []


def _measured(run: Run, cost: dict[str, Any], *, paused: bool) -> Figures:
    data = data_of(run)
    split = "valid" if paused and data.encoded.splits["valid"] else usual_split(data)
    evaluation = evaluated(run, split, data)
    examples = data.corpus.splits[split] if data.corpus is not None else ()
    return Figures(
        state="paused" if paused else "finished",
        split=split,
        scores={name: float(score) for name, score in evaluation.scores.items()},
        parameters=count(run.model),
        values=values_of(evaluation, stretch_of(data.encoded.splits[split])),
        texts=texts_of(evaluation, examples),
        **cost,
    )


def values_of(evaluation: Evaluation, stretch: int = 1) -> dict[str, list[float]]:
    """Return each example's scores, and the summed loss and number of targets of each batch.

    `examples` are the numbers of the examples. Windows of a series follow one another and overlap,
    so they are not independent: each `stretch` of them has one value, the mean, and `windows` has
    their number.
    """
    values = {
        "loss": [loss for loss, _ in evaluation.batches],
        "targets": [float(n) for _, n in evaluation.batches],
    }
    for metric, by_example in evaluation.values.items():
        values["examples"] = [float(i) for i in by_example][::stretch]
        scores = list(by_example.values())
        groups = [scores[i : i + stretch] for i in range(0, len(scores), stretch)]
        values[metric] = [fmean(group) for group in groups]
        if stretch > 1:
            values["windows"] = [float(len(group)) for group in groups]
    return values


def stretch_of(examples: Sequence[Encoded]) -> int:
    """Return how many windows of a series make one value; 1 for other examples.

    Twice as many as overlap in what they forecast, so that most windows share no time step with
    other stretches: the blocks of a block bootstrap (Künsch 1989).
    """
    return 2 * examples.horizon if isinstance(examples, ForecastWindows) else 1


def texts_of(evaluation: Evaluation, examples: Sequence[Example]) -> list[tuple[str, str]]:
    """Each translation, caption or transcript with its reference, for BLEU."""
    if not (examples and isinstance(examples[0], Pair | Captioned | Transcribed)):
        return []
    return [(answer, target_text(examples[i])) for i, answer in evaluation.predictions.items()]
