"""Training and measuring one cell of a study, in the process that was made for it."""

import json
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter, ValidationError
from rich.console import Console

from addnorm.atomic import atomic_write
from addnorm.data.compact import Encoded
from addnorm.data.examples import Captioned, Example, Pair, Transcribed, target_text
from addnorm.data.forecast_windows import ForecastWindows
from addnorm.errors import InputError, Interrupted, NonFiniteError
from addnorm.lab.cell import Figures, Job
from addnorm.nn.choices import KernelChoices, use_choices
from addnorm.runs.build import count_parameters
from addnorm.runs.evaluation import Evaluation, data_of, evaluated, usual_split
from addnorm.runs.folder import is_finished, read_settings
from addnorm.runs.recipe import check_recipe
from addnorm.runs.run import Run
from addnorm.runs.training import count, train_run
from addnorm.train.journal import read_journal

LOG = "train.log"
TIMES = "seconds.json"
"""How long each stretch of training took, apart from what has to be equal to the bit."""
TIMES_OF = TypeAdapter(list[float])


def train_cell(job: Job) -> Figures:
    """Train a cell to its end, or to where it pauses, and measure it on its test split.

    Without one, on its validation split. Raises `InputError` for what is wrong with its recipe or
    data, and for whatever else fails in training, with the file that says where.
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
                spent = _cost(folder, time.perf_counter() - begun)
                return Figures(
                    state="diverged",
                    split="valid",
                    scores={},
                    parameters=count_parameters(*read_settings(folder)),
                    problem=str(error),
                    **spent,
                )
            except (InputError, Interrupted):
                raise
            except Exception as error:  # most often of a part of a person's own
                log.write(traceback.format_exc())
                said = f"{type(error).__name__}: {error}"
                raise InputError(f"{said} (where it happened is in {folder / LOG})") from error
            spent = _cost(folder, time.perf_counter() - begun)
            return _measured(run, spent, paused=not is_finished(folder))


def _cost(folder: Path, seconds: float) -> dict[str, Any]:
    """The steps, tokens and seconds of all stretches of training so far."""
    times = [*stretches(folder), round(seconds, 3)]
    atomic_write(folder / TIMES, json.dumps(times))
    steps = [line for line in read_journal(folder / "metrics.jsonl").lines if "loss" in line]
    return {
        "steps": int(steps[-1]["step"]) if steps else 0,
        "tokens": int(sum(line["tokens"] for line in steps)),
        "seconds": sum(times),
    }


def stretches(folder: Path) -> list[float]:
    """The seconds of each stretch of training; none where the file is missing or damaged."""
    try:
        return TIMES_OF.validate_json((folder / TIMES).read_bytes())
    except (OSError, ValidationError):
        return []


def _measured(run: Run, cost: dict[str, Any], *, paused: bool) -> Figures:
    data = data_of(run)
    split = "valid" if paused and data.encoded.splits["valid"] else usual_split(data)
    found = evaluated(run, split, data)
    examples = data.corpus.splits[split] if data.corpus is not None else ()
    return Figures(
        state="paused" if paused else "finished",
        split=split,
        scores={name: float(score) for name, score in found.scores.items()},
        parameters=count(run.model),
        values=values_of(found, stretch_of(data.encoded.splits[split])),
        texts=texts_of(found, examples),
        **cost,
    )


def values_of(found: Evaluation, stretch: int = 1) -> dict[str, list[float]]:
    """The values of single examples whose mean is a score; of a loss, sums and targets by batch.

    `examples` are their numbers. Windows of a series follow one another and overlap: they are no
    independent examples, so each `stretch` of them has one value, the mean, and their number among
    `windows`.
    """
    values = {
        "loss": [loss for loss, _ in found.batches],
        "targets": [float(n) for _, n in found.batches],
    }
    for metric, by_example in found.values.items():
        values["examples"] = [float(i) for i in by_example][::stretch]
        several = _stretches(list(by_example.values()), stretch)
        values[metric] = [fmean(one) for one in several]
        if stretch > 1:
            values["windows"] = [float(len(one)) for one in several]
    return values


def _stretches(values: list[float], stretch: int) -> list[list[float]]:
    return [values[i : i + stretch] for i in range(0, len(values), stretch)]


def stretch_of(examples: Sequence[Encoded]) -> int:
    """How many windows of a series make one value; 1 of any other examples.

    They are twice those that overlap in what they forecast, so that most have nothing in common
    with those of other stretches: blocks of a block bootstrap (Künsch 1989).
    """
    return 2 * examples.horizon if isinstance(examples, ForecastWindows) else 1


def texts_of(found: Evaluation, examples: Sequence[Example]) -> list[tuple[str, str]]:
    """Each translation, caption or transcript with its reference, for BLEU."""
    if not (examples and isinstance(examples[0], Pair | Captioned | Transcribed)):
        return []
    return [(answer, target_text(examples[i])) for i, answer in found.predictions.items()]
