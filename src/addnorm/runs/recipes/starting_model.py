"""Starting training from the configuration and weights of an existing model."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter
from torch import Tensor, nn

from addnorm.convert.core.family import ModelSpec
from addnorm.convert.core.modules import is_run_folder
from addnorm.convert.core.settings import Settings
from addnorm.convert.folder import describe_folder, is_hf_folder
from addnorm.convert.importers.gguf import describe_gguf
from addnorm.convert.weights.gguf_file import is_gguf
from addnorm.convert.weights.peft import base_of, is_adapter
from addnorm.errors import InputError
from addnorm.files import check_model_folder
from addnorm.models import EncoderDecoderConfig, ModelConfig
from addnorm.models.weights import Weights, weights_of
from addnorm.runs.recipes.custom_parts import check_imports

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
    check_model_folder(folder)
    if is_gguf(folder):
        return tree_of(sized(describe_gguf(folder)[0]))
    if is_hf_folder(folder):
        return tree_of(sized(describe_folder(folder)[1]))
    if is_adapter(folder) and not is_run_folder(folder):
        return model_tree(base_of(folder))
    tree = Settings.of(folder).tree.get("recipe")
    model = tree.get("model") if isinstance(tree, dict) else None
    if not isinstance(model, dict):
        raise InputError(f"{folder}: neither a run folder nor one from Hugging Face")
    check_imports(folder, model)
    return model


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Merge `new` into `old`: tables of the same kind are merged, others replaced."""
    if "kind" in new and new["kind"] != old.get("kind"):
        return new
    result = dict(old)
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            value = merged(before, value)
        result[key] = value
    return result


@dataclass(frozen=True)
class MatchReport:
    """Which weights were transferred by name and shape, and which were not."""

    transferred: tuple[str, ...]
    new: tuple[str, ...]
    """Weights of the model without a match, which are unchanged."""
    unused: tuple[str, ...]
    """Source weights that the model does not use."""
    partly: tuple[str, ...] = ()
    """Weights of which some rows were transferred, and others are unchanged."""
    names: tuple[str, ...] = ()
    """The differences between the names of rows, a phrase for each kind of name."""

    @property
    def fresh(self) -> tuple[str, ...]:
        """The weights that were not transferred, or only in part."""
        return (*self.new, *self.partly)

    def __str__(self) -> str:
        """A one-line summary."""
        parts = [f"{len(self.transferred)} weights taken over"]
        parts += [f"in part: {shown(self.partly)}"] if self.partly else []
        parts += [f"new: {shown(self.new)}"] if self.new else []
        parts += [f"left out: {shown(self.unused)}"] if self.unused else []
        return "; ".join([*parts, *self.names])


def shown(names: tuple[str, ...], most: int = 4) -> str:
    """The first few names, and the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


NOTHING_MATCHES = "no weight has the name and shape of one of this model"


@dataclass(frozen=True)
class Transfer:
    """What a model takes of the weights of another one: which, and how each is copied."""

    report: MatchReport
    copies: Mapping[str, Callable[[Tensor, Tensor], object]]
    """By the name of a weight, what copies from the weight of the other model into it."""

    @torch.no_grad()
    def into(self, name: str, weight: Tensor, others: Mapping[str, Tensor]) -> None:
        """Copy into the weight of this name what the other model has for it, if anything."""
        if copy := self.copies.get(name):
            copy(weight, others[name])

    def all_into(self, model: nn.Module, others: Mapping[str, Tensor]) -> MatchReport:
        """Copy everything into a model; return the report."""
        for name, weight in weights_of(model).items():
            self.into(name, weight, others)
        return self.report


def matching_weights(model: nn.Module, others: Weights) -> Transfer:
    """The transfer of the weights whose name and shape match those of the model.

    Raises `InputError` if none match.
    """
    targets = weights_of(model)
    matching = [n for n, w in targets.items() if n in others and others[n].shape == w.shape]
    if not matching:
        raise InputError(NOTHING_MATCHES)
    new, unused = ([name for name in side if name not in matching] for side in (targets, others))
    report = MatchReport(tuple(matching), tuple(new), tuple(unused))
    return Transfer(report, dict.fromkeys(matching, Tensor.copy_))


def transfer_matching_weights(model: nn.Module, weights: Weights) -> MatchReport:
    """Copy the weights whose name and shape match those of the model.

    Raises `InputError` if none match.
    """
    return matching_weights(model, weights).all_into(model, weights)
