"""Starting training from the configuration and weights of an existing folder."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import nn

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import describe_folder, is_hf_folder
from addnorm.convert.weights.peft import base_of, is_peft_folder
from addnorm.errors import InputError
from addnorm.files import read_file
from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.runs.imports import check_imports
from addnorm.train.average import Weights, weights_of

MODEL = TypeAdapter[ModelConfig](ModelConfig)


def tree_of(model: ModelConfig) -> dict[str, Any]:
    """A model configuration as a tree of recipe values."""
    return MODEL.dump_python(model, mode="json")


def sized(spec: ModelSpec) -> ModelConfig:
    """The model configuration with its vocabulary sizes filled in."""
    model, n = spec.model, spec.vocab_size or None
    if isinstance(model, EncoderDecoderConfig):
        return replace(model, vocab_size=n, target_vocab_size=spec.target_vocab_size)
    return replace(model, vocab_size=n)


def model_tree(folder: Path) -> dict[str, Any]:
    """The model of a run folder or Hugging Face folder, as a tree of recipe values.

    Raises `InputError` if it is neither.
    """
    if is_peft_folder(folder) and not (folder / "config.json").exists():
        return model_tree(base_of(folder))
    if is_hf_folder(folder):
        return tree_of(sized(describe_folder(folder)[1]))
    tree = Settings.of(folder).tree.get("recipe")
    model = tree.get("model") if isinstance(tree, dict) else None
    if not isinstance(model, dict):
        raise InputError(f"{folder}: neither a run folder nor one from Hugging Face")
    check_imports(folder, model)
    return model


def chat_template(folder: Path) -> str | None:
    """The Jinja template with which the model of a folder was taught to chat; None without one.

    Raises `InputError` for a damaged file, and for several templates of which none is the default.
    """
    file, settings = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    try:
        if file.is_file():
            return read_file(file).decode()
        tree = Settings.of(folder).tree.get("recipe")
        own = tree.get("data") if isinstance(tree, dict) else None
        if isinstance(own, dict):
            return own.get("template") if own.get("kind") == "chat" else None
        found = json.loads(read_file(settings))["chat_template"] if settings.is_file() else None
    except KeyError:
        return None
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{folder}: its chat template cannot be read: {error}") from error
    return found if found is None or isinstance(found, str) else _default(found, settings)


def _default(found: Any, file: Path) -> str:
    """The default of several templates, each a name and a text."""
    try:
        named = {one["name"]: one["template"] for one in found}
    except (TypeError, KeyError) as error:
        raise InputError(f"{file}: chat_template is neither a text nor a list of them") from error
    if not isinstance(named.get("default"), str):
        known = ", ".join(map(str, named)) or "none"
        raise InputError(
            f"{file}: chat_template has {known}, and no default: give data.template its text"
        )
    return named["default"]


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge `new` into `old`: tables of the same kind are merged, others replaced."""
    if "kind" in new and new["kind"] != old.get("kind"):
        return new
    both = dict(old)
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            value = merged(before, value)
        both[key] = value
    return both


@dataclass(frozen=True)
class MatchReport:
    """Which weights were transferred by name and shape, and which were not."""

    kept: tuple[str, ...]
    new: tuple[str, ...]
    """Weights of the model without a match, which are unchanged."""
    unused: tuple[str, ...]
    """Source weights that the model does not use."""

    def __str__(self) -> str:
        """A one-line summary."""
        parts = [f"{len(self.kept)} weights taken over"]
        parts += [f"new: {shown(self.new)}"] if self.new else []
        parts += [f"left out: {shown(self.unused)}"] if self.unused else []
        return "; ".join(parts)


def shown(names: tuple[str, ...], most: int = 4) -> str:
    """The first names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


@torch.no_grad()
def transfer_matching_weights(model: nn.Module, weights: Weights) -> MatchReport:
    """Copy the weights whose name and shape match those of the model.

    Raises `InputError` if none match.
    """
    targets = weights_of(model)
    kept = [
        name for name, w in targets.items() if name in weights and weights[name].shape == w.shape
    ]
    if not kept:
        raise InputError("no weight has the name and shape of one of this model")
    for name in kept:
        targets[name].copy_(weights[name])
    new, unused = ([name for name in side if name not in kept] for side in (targets, weights))
    return MatchReport(tuple(kept), tuple(new), tuple(unused))
