"""Runs that consist of a base and an adapter: saved as the adapter alone, opened as one model."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
import xxhash
from pydantic import TypeAdapter
from torch import Tensor, nn

from addnorm.atomic import atomic_write
from addnorm.config import config
from addnorm.convert.adapters import TheirNames, changed_weights, in_their_names
from addnorm.convert.weights.peft import (
    TENSORS,
    PeftAdapter,
    base_of,
    read_peft,
    write_peft,
)
from addnorm.errors import InputError
from addnorm.files import read_json
from addnorm.models.weights import Weights, weights_of
from addnorm.runs.files.digests import check_digest, write_digests
from addnorm.runs.files.folder import BASE, TEACHER
from addnorm.runs.recipes.recipe import Recipe
from addnorm.runs.recipes.starting_model import MatchReport
from addnorm.training.adapters import Adapted


@config
class WeightsDigest:
    """The digest of a model's weights, and how the rows of its embedding were transferred."""

    xxh3_128: str
    rows: str = "in order"


DIGEST = TypeAdapter(WeightsDigest)


def weights_digest(model: nn.Module, names: Iterable[str] | None = None) -> str:
    """The XXH3 hash of a model's weights, by default of all of them."""
    state, weights = xxhash.xxh3_128(), weights_of(model)
    for name in sorted(weights if names is None else names):
        tensor = weights[name].detach().cpu().contiguous()
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()


def write_dependency_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Write the digests of the models that a run depends on, a file for each."""
    for name, digest in digests.items():
        atomic_write(folder / name, json.dumps({"xxh3_128": digest, "rows": "by name"}))


def check_dependency_digests(folder: Path, digests: Mapping[str, str]) -> None:
    """Raise `InputError` if the weights of a model that the run depends on have changed."""
    for name, digest in digests.items():
        if read_dependency_digest(folder / name) not in (None, digest):
            what = "distillation.teacher" if name == TEACHER else "start"
            raise InputError(
                f"{folder}: the model of train.{what} has other weights than when the run began: a "
                "run is resumed with the same"
            )


def read_dependency_digest(file: Path) -> str | None:
    """Read a digest; None if there is no file. Raises `InputError` for a damaged one."""
    return read_json(file, DIGEST).xxh3_128 if file.is_file() else None


def goes_by_name(folder: Path) -> bool:
    """Return whether rows of the base were transferred by name, as they are by default."""
    file = folder / BASE
    return not file.is_file() or read_json(file, DIGEST).rows == "by name"


def save_adapter(folder: Path, adapted: Adapted, start: Path) -> None:
    """Write only the learned weights, and the digests of the finished run.

    In the names of the Hugging Face family where the base is of one and the change can be
    expressed in them, so that PEFT reads it; else in ours.
    """
    layers = {name: layer.low_rank() for name, layer in adapted.layers().items()}
    learned = weights_of(adapted.model)
    inner = {f"{name}.{part}" for name in layers for part in ("lora_A", "lora_B", "magnitude")}
    saved = {name: tensor for name, tensor in learned.items() if name not in inner}
    adapter = PeftAdapter(str(start.absolute()), layers, saved)
    weights = {f"{name}.weight": layer.weight for name, layer in adapted.layers().items()}
    names = TheirNames.of(start)
    everything = {**dict(adapted.model.named_buffers()), **weights, **learned}
    theirs = in_their_names(adapter, names, everything)
    written, transposed = (adapter, False) if theirs is None else theirs
    write_peft(folder, written, transposed=transposed)
    write_digests(folder)


def apply_adapter(model: nn.Module, folder: Path, base: Path) -> Collection[str]:
    """Add the adapter in `folder` to a model that has the weights of its `base`.

    Returns the names of those that changed.
    Raises `InputError` for one that does not fit.
    """
    check_digest(folder / TENSORS)
    try:
        adapter, names = read_peft(folder), TheirNames.of(base)
        changed = changed_weights(weights_of(model), adapter, names)
        if names.family is not None and not adapter.stays_tied:
            alone = changed_weights(weights_of(model), replace(adapter, layers={}), names)
            _check_tied(model, alone)
    except InputError as error:
        place = "" if str(error).startswith(str(folder)) else f"{folder / TENSORS}: "
        raise InputError(f"{place}{error}") from error
    set_weights(model, changed)
    return changed.keys()


def _check_tied(model: nn.Module, replaced: Collection[str]) -> None:
    """Raise `InputError` if a replaced weight is tied to one that PEFT does not replace."""
    names: dict[int, list[str]] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        names.setdefault(id(tensor), []).append(name)
    for tied in names.values():
        if len(tied) > 1 and any(name in replaced for name in tied):
            raise InputError(
                f"replaces one of {' and '.join(tied)}, which the base ties: PEFT unties them "
                "unless the adapter was made with ensure_weight_tying = true"
            )


def check_base(model: nn.Module, taken: MatchReport, folder: Path, base: Path) -> None:
    """Raise `InputError` unless the base is the one that the adapter was trained on."""
    if read_dependency_digest(folder / BASE) not in (
        None,
        weights_digest(model, taken.transferred),
    ):
        raise InputError(
            f"{base}: its weights differ from those that the adapter in {folder} was trained on"
        )


@torch.no_grad()
def set_weights(model: nn.Module, weights: Weights) -> None:
    """Replace weights by name; the memory of the former weights is left unchanged."""
    places: dict[int, Tensor] = {id(p): p for p in (*model.parameters(), *model.buffers())}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in weights:
            places[id(tensor)].data = weights[name].to(tensor.device)


def without_adapter(recipe: Recipe) -> Recipe:
    """The recipe of the merged model, which no longer needs a base."""
    return replace(recipe, train=replace(recipe.train, adapter=None))


def start_of(folder: Path, recipe: Recipe) -> Path:
    """Return the base of an adapter, from its recipe or else from the adapter's own file."""
    start = recipe.train.start
    return start if start is not None and start.is_dir() else base_of(folder)
