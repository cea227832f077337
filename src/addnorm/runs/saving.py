"""Saving a run to a new folder."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from addnorm.atomic import atomic_directory
from addnorm.errors import InputError
from addnorm.runs.build import check_model, save_model
from addnorm.runs.chat_template import write_template
from addnorm.runs.folder import write_settings
from addnorm.runs.quantized import write_quantization
from addnorm.runs.run import Run
from addnorm.runs.scaling import write_scaling
from addnorm.runs.sentence_vectors import copy_modules
from addnorm.runs.variables import copy_variables
from addnorm.train.journal import Journal


def save_run(run: Run, folder: Path) -> Run:
    """Save a run to a folder (see `Run.save`); return it.

    Raises `InputError` if the folder is not empty, or if the model no longer matches its
    configuration.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder}: is there already: save in a new folder")
    check_model(run.model, run.recipe, run.text, run.labels, run.quantization)
    with atomic_directory(folder, index="config.json") as partial:
        write_run(partial, run)
    return replace(run, folder=folder)


def write_run(folder: Path, run: Run) -> None:
    """Write all of a finished run."""
    write_settings(folder, run.recipe, run.text, run.labels)
    write_scaling(folder, run.scaling)
    copy_variables(run.folder, folder)
    if run.quantization is not None:
        write_quantization(folder, run.quantization)
    copy_modules(run.folder, folder)
    write_template(folder, run.recipe.data, run.folder, run.text)
    save_model(folder, run.model)


def write_validation(folder: Path, scores: Mapping[str, float], step: int = 0) -> None:
    """Write what was measured on the validation split, where `info` and `compare` look for it."""
    figures = {f"valid_{name}": value for name, value in scores.items() if name != "examples"}
    if figures:
        Journal(folder).write(step, figures)
