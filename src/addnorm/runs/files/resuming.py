"""Resuming a run: the settings that may change, and the command to do it."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from addnorm.errors import InputError, nearest
from addnorm.runs.files.folder import is_run, read_settings
from addnorm.runs.files.lock import in_use
from addnorm.runs.recipes.custom_parts import imports_of
from addnorm.runs.recipes.recipe import Recipe, differences

MAY_CHANGE = (
    "data.root",
    "train.steps",
    "train.epochs",
    "train.schedule_steps",
    "train.validate_every",
    "train.save_every",
    "train.keep",
    "train.patience",
    "train.compile",
    "train.activation_checkpointing",
    "train.device",
    "train.logger",
    "train.tensorboard",
    "eval",
    "parallel",
)
"""The settings that may change when a run is resumed; all others define the run."""

NO_DATA = "its data are in no file, so it cannot be resumed"


def resumed_recipe(folder: Path, overrides: Mapping[str, str]) -> Recipe:
    """The recipe of the run in `folder`, with `overrides` applied from now on.

    Raises `InputError` if there is no run, if its data are not in files, or if an override is not
    allowed to change.
    """
    for name in overrides:
        if not _may_change(name):
            raise InputError(
                f"`{name}`: a resumed run keeps it.{_nearest(name)} "
                f"May change: {', '.join(MAY_CHANGE)}."
            )
    if not is_run(folder) and (owner := in_use(folder)) is not None:
        raise InputError(f"{folder}: in use: {owner} is starting a run there")
    if not is_run(folder):
        raise InputError(
            f"{folder}: no run to resume: it ended before its first step, or is another folder"
        )
    recipe = read_settings(folder, overrides).recipe
    if recipe.data is None:
        raise InputError(f"{folder}: {NO_DATA}")
    return recipe


def resume_command(folder: Path, recipe: Recipe) -> str:
    """The command that resumes a run."""
    imports = [f"--import {shlex.quote(name)}" for name in imports_of(recipe).values()]
    n = recipe.parallel.processes
    processes = [f"--processes {n}"] if n > 1 else []
    return " ".join(["addnorm train --resume", shlex.quote(str(folder)), *imports, *processes])


def how_to_resume(folder: Path, recipe: Recipe) -> str:
    """The half of a sentence that says by which command a run is resumed, or why it cannot be."""
    if recipe.data is None:
        return NO_DATA
    return f"`{resume_command(folder, recipe)}` resumes it"


def check_same_run(folder: Path, old: Recipe, new: Recipe) -> Iterator[str]:
    """Yield a message for each changed field. Raises `InputError` for one that may not change."""
    for name, (before, after) in differences(old, new).items():
        if not _may_change(name):
            raise InputError(
                f"{folder}: holds another run: {name} is {before!r} there and {after!r} here. "
                f"Choose another `out`, or resume it with `{resume_command(folder, old)}`."
            )
        yield f"{name}: {before!r} so far, {after!r} from here on"


def _nearest(name: str) -> str:
    """A hint that names a setting of the same table with a similar name that may change."""
    table, _, field = name.partition(".")
    names = {name.partition(".")[2]: name for name in MAY_CHANGE if name.startswith(f"{table}.")}
    return nearest(name, names.values()) if nearest(field, names) else ""


def _may_change(name: str) -> bool:
    return f"{name}.".startswith(tuple(f"{field}." for field in MAY_CHANGE))
