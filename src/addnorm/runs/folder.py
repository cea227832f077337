"""The run folder: recipe, tokenisers, labels and weights on disk, and back as a usable model.

    config.json  tokenizer.json (or source. and target.)  labels.json  model.safetensors
    metrics.jsonl  checkpoints/
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from addnorm.data.encoding import Tokenizers
from addnorm.data.examples import Task
from addnorm.errors import InputError, nearest
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, Model
from addnorm.nn.heads import ClassificationHeadConfig, TaggingHeadConfig, TokenHeadConfig
from addnorm.runs.recipe import RECIPE, Recipe, check_recipe, set_field
from addnorm.train.average import copy_into, weights_of
from addnorm.train.checkpoint import load_weights, save_weights, write_atomically

FORMAT = 1
"""The version of this layout, kept in `config.json`."""


@dataclass(frozen=True)
class Run:
    """A trained model with all that its use needs."""

    folder: Path
    recipe: Recipe
    tokenizers: Tokenizers
    labels: tuple[str, ...]
    model: Model

    @classmethod
    def open(cls, folder: Path, overrides: Mapping[str, str] | None = None) -> "Run":
        """Load a finished run, with fields of its recipe replaced by `overrides`.

        Raises `InputError` where the folder is not a run, or is damaged.
        """
        recipe, tokenizers, labels = read_settings(folder, overrides)
        model = build_model(recipe, tokenizers, labels)
        weights = folder / "model.safetensors"
        if not weights.exists():
            raise InputError(
                f"{folder}: training has not finished: go on with "
                f"`addnorm train RECIPE --out {folder} --resume`"
            )
        load_into(model, weights)
        return cls(folder, recipe, tokenizers, labels, model.eval())

    def save_weights(self) -> None:
        """Write `model.safetensors`, tied weights once."""
        save_weights(self.folder / "model.safetensors", weights_of(self.model))

    @property
    def task(self) -> Task:
        """What the model is for."""
        return task_of(self.recipe)


def write_settings(
    folder: Path, recipe: Recipe, tokenizers: Tokenizers, labels: Sequence[str]
) -> None:
    """Write all of a run but its weights."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizers.save(folder)
    if labels:
        write_atomically(folder / "labels.json", json.dumps(labels, ensure_ascii=False))
    facts = {"format": FORMAT, "recipe": RECIPE.dump_python(recipe, mode="json")}
    write_atomically(folder / "config.json", json.dumps(facts, indent=1, ensure_ascii=False))


def read_settings(
    folder: Path, overrides: Mapping[str, str] | None = None
) -> tuple[Recipe, Tokenizers, tuple[str, ...]]:
    """Read what `write_settings` wrote. Raises `InputError` naming what is missing or wrong."""
    file = folder / "config.json"
    if not file.exists():
        near = [p.parent.name for p in folder.parent.glob("*/config.json")]
        raise InputError(f"{folder}: not a run folder: no config.json.{nearest(folder.name, near)}")
    facts = _read_json(file)
    if not isinstance(facts, dict) or facts.get("format") != FORMAT or "recipe" not in facts:
        raise InputError(f"{file}: not a run of this version of AddNorm (format {FORMAT})")
    tree = facts["recipe"]
    for name, value in (overrides or {}).items():
        set_field(tree, name, value)
    recipe = check_recipe(tree, lambda path: f"{file}: {'.'.join(path)}")
    labels = folder / "labels.json"
    return recipe, Tokenizers.load(folder), tuple(_read_json(labels)) if labels.exists() else ()


def build_model(recipe: Recipe, tokenizers: Tokenizers, labels: Sequence[str]) -> Model:
    """The untrained model of a recipe, sized for its vocabularies and labels."""
    source, target = tokenizers.source.vocab_size, tokenizers.target.vocab_size
    match recipe.model:
        case EncoderDecoderConfig() as model:
            return model.build(source, target)
        case DecoderConfig() as model:
            return model.build(source)
        case EncoderConfig() as model:
            return model.build(source, n_labels=len(labels) or None)


def task_of(recipe: Recipe) -> Task:
    """The task that a recipe's model is for."""
    match recipe.model:
        case EncoderDecoderConfig():
            return "translation"
        case DecoderConfig():
            return "language"
        case EncoderConfig(head=ClassificationHeadConfig()):
            return "classification"
        case EncoderConfig(head=TaggingHeadConfig()):
            return "tagging"
        case EncoderConfig(head=TokenHeadConfig()):
            raise InputError(
                "model.head.kind = 'token' on an encoder has no training task here: "
                "use 'classification' or 'tagging'"
            )


def load_into(model: nn.Module, file: Path) -> None:
    """Fill `model` from a safetensors file.

    Raises `InputError` naming the tensors that are missing, unexpected or of another shape.
    """
    found, expected = load_weights(file), weights_of(model)
    problems = [f"missing {name}" for name in expected.keys() - found.keys()]
    problems += [f"unexpected {name}" for name in found.keys() - expected.keys()]
    problems += [
        f"{name} has shape {tuple(found[name].shape)}, expected {tuple(weight.shape)}"
        for name, weight in expected.items()
        if name in found and found[name].shape != weight.shape
    ]
    if problems:
        shown = "; ".join(sorted(problems)[:5])
        raise InputError(f"{file}: does not fit this model ({len(problems)} problems): {shown}")
    with torch.no_grad():
        copy_into(model, found)


def _read_json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: damaged: {error}") from error
