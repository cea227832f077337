"""Writing a run, its weights and the files around them; the only place that writes runs."""

from dataclasses import replace
from pathlib import Path

import torch

from addnorm.atomic import atomic_directory
from addnorm.convert.preprocessing import copy_preprocessing
from addnorm.data import ChatConfig
from addnorm.errors import InputError
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.quantize import is_quantized
from addnorm.runs.files.adapter_files import without_adapter
from addnorm.runs.files.folder import (
    AROUND,
    settings_of,
    stored_recipe,
    write_scaling,
    write_settings,
    write_variables,
)
from addnorm.runs.files.quantization_file import write_quantization
from addnorm.runs.files.speech_prompt import copy_speech_keys
from addnorm.runs.files.weights import WEIGHTS, check_model, save_model
from addnorm.runs.inference.sentence_vectors import copy_modules
from addnorm.runs.recipes.chat_template import copy_template
from addnorm.runs.trained_model import TrainedModel
from addnorm.training.checkpoint import load_weights
from addnorm.training.loggers import LOG


def save_run(run: TrainedModel, folder: Path) -> None:
    """Save a run to a folder (see `Run.save`).

    Raises `InputError` if the folder has other content, or if the model no longer matches its
    configuration.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        if _holds(folder, run):
            return
        what = "is there already" if folder.is_dir() else "is a file"
        raise InputError(f"{folder}: {what}: save in a new folder")
    if run.quantization is None and is_quantized(run.model):
        raise InputError(
            f"{folder}: the weights are kept in fewer bits for use alone: save the run without "
            "`weights`"
        )
    check_model(run.model, run.recipe, run.text, run.labels, run.quantization)
    with atomic_directory(folder, index="config.json") as partial:
        write_run(partial, run)
        if run.log:
            (partial / LOG).write_bytes(run.log)


def _holds(folder: Path, run: TrainedModel) -> bool:
    """Whether a folder already holds this very run: the same recipe, labels and weights."""
    stored = stored_recipe(folder)
    if stored is None or not (folder / WEIGHTS).is_file():
        return False
    recipe, _, labels = settings_of(folder, stored)
    weights = load_weights(folder / WEIGHTS)
    same = (recipe, labels) == (without_adapter(run.recipe), run.labels)
    return (
        same
        and weights.keys() == run.weights.keys()
        and all(
            weight.dtype == weights[name].dtype and torch.equal(weight.cpu(), weights[name])
            for name, weight in run.weights.items()
        )
    )


def write_run(folder: Path, run: TrainedModel) -> None:
    """Write a finished run with its whole model."""
    write_around(folder, replace(run, recipe=without_adapter(run.recipe)))
    save_model(folder, run.model)


def write_around(folder: Path, run: TrainedModel) -> None:
    """Write all of a run except its weights; `config.json` comes last and marks it as complete.

    What an earlier run left of these files, which was never finished, is removed before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in (file for pattern in AROUND for file in folder.glob(pattern)):
        earlier.unlink()
    if run.scaling is not None:
        write_scaling(folder, run.scaling)
    if run.variables:
        write_variables(folder, run.variables)
    if run.quantization is not None:
        write_quantization(folder, run.quantization)
    if run.bases or run.folder != folder:  # else there is no other folder to take it from
        write_for_use(folder, run)
    write_settings(folder, run.recipe, run.text, run.labels)


def write_for_use(folder: Path, run: TrainedModel) -> None:
    """Write the modules and the chat template that describe how a run is used.

    A model that compares texts has learnt itself how a text becomes a vector, and one that chats
    has its template in its recipe. One that came without data reads pictures and sound, and begins
    what it writes of them, as its folder says.
    """
    if not isinstance(run.recipe.model.head, SimilarityHeadConfig):
        copy_modules(run.places, folder)
    if not isinstance(run.recipe.data, ChatConfig):
        copy_template(run.places, folder)
    if run.recipe.data is None and run.reads_files:
        copy_preprocessing(run.places, folder)
        copy_speech_keys(run.places, folder)
