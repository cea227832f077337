"""The loggers of a run: their ids, kept in the run folder, and the events they have received."""

import json
import secrets
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from pydantic import TypeAdapter

from addnorm.atomic import atomic_write
from addnorm.files import read_json
from addnorm.parts import kind_of
from addnorm.runs.files.digests import DATA
from addnorm.runs.recipes.recipe import RECIPE, Recipe
from addnorm.training.callbacks import Callbacks, Heard
from addnorm.training.loggers import (
    LOG,
    LoggedRun,
    LoggerConfig,
    TensorBoardConfig,
    build_logger,
    read_journal,
)

IDS = "loggers.json"
"""The file with the id of the run at each logger, by the kind of the logger."""


def heard_so_far(folder: Path) -> Heard:
    """The last step and validation in a run's log, before it is cut for resuming."""
    lines = read_journal(folder / LOG).lines
    steps = [int(line["step"]) for line in lines if "loss" in line]
    validations = [int(line["step"]) for line in lines if "loss" not in line]
    return Heard(max(steps, default=0), max(validations, default=0))


@contextmanager
def listening(
    callbacks: Callbacks, recipe: Recipe, folder: Path, step: int, heard: Heard
) -> Generator[None]:
    """A context in which a recipe's loggers are among the callbacks.

    Training continues after `step`; `heard` is what the log had before. Those that are context
    managers are entered, and so are the other callbacks. Raises `InputError` if one cannot log.
    """
    for logger in recipe.train.loggers:
        run, before = _logged_run(logger, recipe, folder, step, heard)
        callbacks.add(build_logger(logger, run), before)
    with callbacks.entered():
        yield


def _logged_run(
    logger: LoggerConfig, recipe: Recipe, folder: Path, step: int, heard: Heard
) -> tuple[LoggedRun, Heard]:
    """The run as a logger needs it, and the events that the logger has already received."""
    file, kind = folder / IDS, kind_of(logger)
    ids = read_json(file, TypeAdapter(dict[str, str])) if file.is_file() else {}
    before = heard if kind in ids else Heard()
    if kind not in ids:
        ids[kind] = secrets.token_hex(8)
        atomic_write(file, json.dumps(ids, indent=1))
    run = LoggedRun(
        id=ids[kind],
        name=folder.resolve().name,
        folder=folder,
        recipe=RECIPE.dump_python(recipe, mode="json"),
        data=read_json(folder / DATA),
        step=step,
        logged_step=before.step,
    )
    # TensorBoard takes steps that are made again in place of those from before.
    return run, Heard() if isinstance(logger, TensorBoardConfig) else before
