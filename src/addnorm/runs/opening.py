"""Opening a folder as a run: one of ours, one from Hugging Face, or an adapter with its base."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from addnorm.convert.core.modules import is_run_folder, places_of
from addnorm.convert.folder import is_hf_folder, load_gguf
from addnorm.convert.folder import load as load_hf
from addnorm.convert.weights.gguf_file import is_gguf
from addnorm.convert.weights.peft import base_of, is_adapter
from addnorm.errors import InputError, Stopped
from addnorm.runs.files.adapter_files import (
    apply_adapter,
    check_base,
    goes_by_name,
    start_of,
    without_adapter,
)
from addnorm.runs.files.folder import (
    Saved,
    is_quantized,
    read_scaling,
    read_settings,
    read_variables,
    settings_of,
    stored_recipe,
)
from addnorm.runs.files.quantization_file import check_float, read_quantization
from addnorm.runs.files.resuming import how_to_resume
from addnorm.runs.files.weights import (
    Splitting,
    build_model,
    load_model,
    outlined_model,
    stopped_model,
    unsplit,
)
from addnorm.runs.named_rows import transfer_of
from addnorm.runs.trained_model import TrainedModel
from addnorm.training.checkpoint import latest_checkpoint

CPU = torch.device("cpu")


def open_model(
    folder: Path,
    overrides: Mapping[str, str] | None = None,
    *,
    device: torch.device = CPU,
    dtype: torch.dtype | None = None,
    pickled: bool = False,
    split: Splitting = unsplit,
) -> TrainedModel:
    """Load a finished run (see `Run.open`); `split` gives this process its pieces of the model.

    Raises `InputError` for a quantised model that is to be split.
    """
    stored = stored_recipe(folder)
    if stored is None:
        opened = _opened_otherwise(folder, overrides, device=device, dtype=dtype, pickled=pickled)
        split(opened.model)
        return opened
    saved = settings_of(folder, stored, overrides)
    quantization = read_quantization(folder) if is_quantized(folder) else None
    if quantization is not None and split is not unsplit:
        raise InputError(f"{folder}: a quantised model runs in one process: use the one before")
    model = load_model(folder, *saved, dtype=dtype, quantization=quantization, split=split)
    opened = TrainedModel(
        folder,
        *saved,
        model.to(device),
        quantization=quantization,
        scaling=read_scaling(folder, saved.recipe),
        variables=read_variables(folder),
    )
    return opened if dtype is None else opened.to(dtype=dtype)


def open_by_weight(folder: Path) -> tuple[TrainedModel, Mapping[str, Tensor]]:
    """Load a finished run without its weights, and return these, each read when it is asked for.

    A quantised run, and a folder of another library, are opened as by `open_model`.
    """
    stored = stored_recipe(folder)
    if stored is None or is_quantized(folder):
        opened = open_model(folder)
        return opened, opened.weights
    saved = settings_of(folder, stored, None)
    model, weights = outlined_model(folder, *saved)
    scaling, variables = read_scaling(folder, saved.recipe), read_variables(folder)
    return TrainedModel(folder, *saved, model, scaling=scaling, variables=variables), weights


def _opened_otherwise(
    folder: Path,
    overrides: Mapping[str, str] | None,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    pickled: bool,
) -> TrainedModel:
    """Load an adapter with its base, a Hugging Face folder or a GGUF file."""
    saved = read_settings(folder, overrides)
    if is_adapter(folder):
        return _with_adapter(folder, saved, pickled=pickled).to(device, dtype)
    if is_gguf(folder):
        model = load_gguf(folder, dtype=dtype, model=saved.recipe.model)
        return TrainedModel(folder, *saved, model.to(device))
    if is_hf_folder(folder):
        model = load_hf(folder, dtype=dtype, pickled=pickled, model=saved.recipe.model).model
        return TrainedModel(folder, *saved, model.to(device))
    return _stopped(folder, saved).to(device, dtype)


def _stopped(folder: Path, saved: Saved) -> TrainedModel:
    """An unfinished run at its last checkpoint; a warning says so.

    Raises `InputError` if there is no checkpoint, and for a run that learns an adapter.
    """
    resumed = how_to_resume(folder, saved.recipe)
    newest, _ = latest_checkpoint(folder / "checkpoints")
    if newest is None or saved.recipe.train.adapter is not None:
        raise InputError(f"{folder}: training has not finished: {resumed}")
    model = stopped_model(newest, *saved)
    step = int(newest.name.removeprefix("step-"))
    warnings.warn(
        f"{folder}: training was stopped: this is the model after step {step:,}, its last "
        f"checkpoint; {resumed}",
        Stopped,
        stacklevel=2,
    )
    scaling = read_scaling(folder, saved.recipe)
    return TrainedModel(folder, *saved, model, scaling=scaling, variables=read_variables(folder))


def _with_adapter(folder: Path, saved: Saved, *, pickled: bool) -> TrainedModel:
    """The base of an adapter, as a plain model with the adapter merged into it."""
    ours = is_run_folder(folder)  # or PEFT's, on a folder that may itself have begun elsewhere
    base = start_of(folder, saved.recipe) if ours else base_of(folder)
    begun = open_model(base, pickled=pickled)
    check_float(begun, "is adapted")
    variables = read_variables(folder) or begun.variables
    model = build_model(*saved)
    named = (saved.tokenizers, saved.labels, variables)
    by_name = is_run_folder(folder) and goes_by_name(folder)  # PEFT takes rows in their order
    transfer = transfer_of(model, saved.recipe.model, named, begun, by_name=by_name)
    taken = transfer.all_into(model, begun.weights)
    check_base(model, taken, folder, base)
    changed = apply_adapter(model, folder, base)
    if lacking := [name for name in taken.fresh if name not in changed]:
        raise InputError(f"{folder}: neither the adapter nor {base} has {lacking[0]}")
    recipe = without_adapter(saved.recipe)
    return TrainedModel(
        folder,
        recipe,
        saved.tokenizers,
        saved.labels,
        model.eval(),
        scaling=read_scaling(folder, recipe),
        variables=variables,
        bases=places_of(base),
    )
