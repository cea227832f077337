"""Runs that are a base and an adapter: saved as the adapter alone, opened as one plain model."""

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from addnorm.atomic import atomic_write
from addnorm.convert.adapters import TheirNames, changed_weights, in_their_names
from addnorm.convert.weights.peft import (
    TENSORS,
    PeftAdapter,
    base_of,
    is_peft_folder,
    read_peft,
    write_peft,
)
from addnorm.errors import InputError
from addnorm.files import read_file
from addnorm.runs.digests import check_digest, write_digests
from addnorm.runs.recipe import Recipe
from addnorm.runs.start import MatchReport
from addnorm.train.adapters import Adapted
from addnorm.train.average import Weights, weights_of

BASE = "base.json"
"""The file with the digest of the weights that an adapter was trained beside."""


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, and no whole model."""
    return is_peft_folder(folder) and not (folder / "model.safetensors").is_file()


def base_digest(model: nn.Module, taken: MatchReport) -> str:
    """The XXH3 hash of the weights that a model took over from its base."""
    state, weights = xxhash.xxh3_128(), weights_of(model)
    for name in sorted(taken.kept):
        tensor = weights[name].detach().cpu().contiguous()
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()


def save_adapter(folder: Path, adapted: Adapted, start: Path, digest: str) -> None:
    """Write what was learned alone, and the digests of the finished run.

    In the names of the Hugging Face family where the base is of one and the change can be said in
    them, so that PEFT reads it; else in ours.
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
    atomic_write(folder / BASE, json.dumps({"xxh3_128": digest}))
    write_digests(folder)


def apply_adapter(model: nn.Module, folder: Path, base: Path) -> Collection[str]:
    """Add the adapter in `folder` to the weights of a model that has those of its `base`.

    Returns the names of those that changed.
    Raises `InputError` for one that does not fit.
    """
    check_digest(folder / TENSORS)
    try:
        found = changed_weights(weights_of(model), read_peft(folder), TheirNames.of(base))
    except InputError as error:
        place = "" if str(error).startswith(str(folder)) else f"{folder / TENSORS}: "
        raise InputError(f"{place}{error}") from error
    set_weights(model, found)
    return found.keys()


def check_base(model: nn.Module, taken: MatchReport, folder: Path, base: Path) -> None:
    """Raise `InputError` if the base is not the one that the adapter was trained beside."""
    file = folder / BASE
    if not file.is_file():
        return
    try:
        expected: Any = json.loads(read_file(file))["xxh3_128"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"{file}: damaged: {error}") from error
    if base_digest(model, taken) != expected:
        raise InputError(
            f"{base}: other weights than those that the adapter in {folder} was trained beside"
        )


@torch.no_grad()
def set_weights(model: nn.Module, weights: Weights) -> None:
    """Replace weights by name, without writing into the memory of those that are there."""
    places: dict[int, Tensor] = {id(p): p for p in (*model.parameters(), *model.buffers())}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name in weights:
            places[id(tensor)].data = weights[name].to(tensor.device)


def without_adapter(recipe: Recipe) -> Recipe:
    """The recipe of the merged model, which is whole in itself."""
    return replace(recipe, train=replace(recipe.train, adapter=None))


def start_of(folder: Path, recipe: Recipe | None) -> Path:
    """The base of an adapter: that of its run's recipe, or where the adapter says it is now."""
    start = None if recipe is None else recipe.train.start
    return start if start is not None and start.is_dir() else base_of(folder)
