"""The run folder: recipe, tokenisers, labels and weights on disk, and back as a usable model.

A Hugging Face folder opens as a run too, one that has no data.

config.json, tokenizer.json (or source. and target., or none), labels.json, model.safetensors,
metrics.jsonl, checkpoints/
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from addnorm.atomic import atomic_write
from addnorm.convert.folder import describe_folder, is_hf_folder
from addnorm.convert.folder import load as load_hf
from addnorm.data import ImagesConfig
from addnorm.data.encoding import Tokenizers
from addnorm.data.examples import Task
from addnorm.data.tokenizers import Tokenizer
from addnorm.errors import InputError, nearest
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, Model
from addnorm.runs.imports import check_imports, imports_of
from addnorm.runs.recipe import (
    RECIPE,
    Place,
    Recipe,
    check_recipe,
    set_field,
    task_of,
    with_current_names,
)
from addnorm.runs.start import sized, tree_of
from addnorm.runs.task import has_labels
from addnorm.train.average import copy_into, weights_of
from addnorm.train.checkpoint import load_weights, save_weights

FORMAT = 1
"""The version of this layout, kept in `config.json`."""


class Saved(NamedTuple):
    """All of a run but its weights; a model of images has no tokenizers."""

    recipe: Recipe
    tokenizers: Tokenizers | None
    labels: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """A trained model with all that its use needs."""

    folder: Path
    recipe: Recipe
    text: Tokenizers | None
    """The tokenizers, where the model has to do with text."""
    labels: tuple[str, ...]
    model: Model

    @classmethod
    def open(
        cls,
        folder: Path,
        overrides: Mapping[str, str] | None = None,
        *,
        dtype: torch.dtype | None = None,
        pickled: bool = False,
    ) -> "Run":
        """Load a finished run, with fields of its recipe replaced by `overrides`.

        `dtype` is by default that of the weights as they are stored. `pickled` allows a
        `pytorch_model.bin` in a Hugging Face folder. Raises `InputError` where the folder is
        neither, is damaged, or training is unfinished.
        """
        saved = read_settings(folder, overrides)
        if is_hf_folder(folder):
            model = load_hf(folder, dtype=dtype, pickled=pickled, model=saved.recipe.model).model
            return cls(folder, saved.recipe, saved.tokenizers, saved.labels, model)
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise InputError(
                f"{folder}: training has not finished: go on with "
                f"`addnorm train RECIPE --out {folder} --resume`"
            )
        model = build_model(saved.recipe, saved.tokenizers, saved.labels)
        load_into(model, weights)
        model = model if dtype is None else model.to(dtype)
        return cls(folder, saved.recipe, saved.tokenizers, saved.labels, model.eval())

    def save_weights(self) -> None:
        """Write `model.safetensors`, tied weights once."""
        save_weights(self.folder / "model.safetensors", weights_of(self.model))

    @property
    def weights(self) -> dict[str, Tensor]:
        """All that the model has learned, by name, tied ones once."""
        return weights_of(self.model)

    @property
    def task(self) -> Task:
        """What the model is for."""
        return task_of(self.recipe)

    @property
    def tokenizers(self) -> Tokenizers:
        """What makes ids of text. Raises `InputError` for a model of images."""
        if self.text is None:
            images = isinstance(self.recipe.data, ImagesConfig)
            why = "reads images, not text" if images else "has no tokenizer"
            raise InputError(f"{self.folder}: this model {why}")
        return self.text


def is_run(folder: Path) -> bool:
    """Whether `write_settings` has finished in this folder."""
    return (folder / "config.json").is_file()


def write_settings(
    folder: Path, recipe: Recipe, tokenizers: Tokenizers | None, labels: Sequence[str]
) -> None:
    """Write all of a run but its weights; `config.json` comes last, so with it all is there."""
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in (*folder.glob("*tokenizer.json"), folder / "labels.json"):
        earlier.unlink(missing_ok=True)
    if tokenizers is not None:
        tokenizers.save(folder)
    if labels:
        atomic_write(folder / "labels.json", json.dumps(labels, ensure_ascii=False))
    write_recipe(folder, recipe)


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write `config.json`."""
    facts: dict[str, Any] = {
        "format": FORMAT,
        "recipe": RECIPE.dump_python(recipe, mode="json"),
    }
    if imports := imports_of(recipe):
        facts["imports"] = imports
    atomic_write(folder / "config.json", json.dumps(facts, indent=1, ensure_ascii=False))


def read_settings(folder: Path, overrides: Mapping[str, str] | None = None) -> Saved:
    """Read what `write_settings` wrote. Raises `InputError` naming what is missing or wrong."""
    file = folder / "config.json"
    if is_hf_folder(folder):
        return _foreign_settings(folder, overrides or {})
    if not is_run(folder):
        near = [path.parent.name for path in folder.parent.glob("*/config.json")]
        raise InputError(f"{folder}: not a run folder: no config.json.{nearest(folder.name, near)}")
    match _read_json(file):
        case {"format": version, "recipe": dict(stored), **facts} if version == FORMAT:
            check_imports(folder, stored, facts.get("imports"))
            tree = with_current_names(stored)
            for name, value in (overrides or {}).items():
                set_field(tree, name, value)
        case _:
            raise InputError(
                f"{file}: not a run of this version of AddNorm (format {FORMAT}), "
                "and no model_type names a model of Hugging Face's"
            )

    recipe = check_recipe(tree, _place(file, overrides or {}))
    there = any(folder.glob("*tokenizer.json"))
    tokenizers = Tokenizers.load(folder) if there or _reads_text(recipe) else None
    return Saved(recipe, tokenizers, _read_labels(folder, recipe))


def _reads_text(recipe: Recipe) -> bool:
    """Whether a run of this recipe always has a tokenizer."""
    images = recipe.data is None or isinstance(recipe.data, ImagesConfig)
    return recipe.tokenizer is not None or (recipe.train.start is not None and not images)


def _foreign_settings(folder: Path, overrides: Mapping[str, str]) -> Saved:
    """Those of a Hugging Face folder: its model, and data only if the overrides name any."""
    _, shaped, tokenizers = describe_folder(folder)
    tree: dict[str, Any] = {
        "model": tree_of(sized(shaped)),
        "train": {"steps": 1, "start": str(folder)},
    }
    for name, value in overrides.items():
        set_field(tree, name, value)
    recipe = check_recipe(tree, _place(folder / "config.json", overrides))
    return Saved(recipe, tokenizers, shaped.labels)


def _place(file: Path, overrides: Mapping[str, str]) -> Place:
    def place(path: list[str]) -> str:
        name = ".".join(path)
        given = [known for known in overrides if f"{name}.".startswith(f"{known}.")]
        return f"--{given[-1]}" if given else str(file)

    return place


def _read_labels(folder: Path, recipe: Recipe) -> tuple[str, ...]:
    if not has_labels(recipe.model):
        return ()
    file = folder / "labels.json"
    labels = _read_json(file)
    if not (isinstance(labels, list) and labels and all(isinstance(one, str) for one in labels)):
        raise InputError(f"{file}: damaged: not a list of names")
    return tuple(labels)


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[Any, Any]]:
    """The values of both recipes for each field, such as `train.lr`, in which they differ."""
    before, after = (_fields(RECIPE.dump_python(r, mode="json")) for r in (old, new))
    names = [*before, *(name for name in after if name not in before)]
    both = {name: (before.get(name), after.get(name)) for name in names}
    return {name: (one, other) for name, (one, other) in both.items() if one != other}


def _fields(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": inner for name, inner in _fields(value).items()}
        else:
            found[key] = value
    return found


def build_model(recipe: Recipe, tokenizers: Tokenizers | None, labels: Sequence[str]) -> Model:
    """The untrained model of a recipe, sized for its vocabularies and labels."""
    model = recipe.model
    source = _rows("vocab_size", model.vocab_size, tokenizers and tokenizers.source)
    match model:
        case EncoderDecoderConfig():
            configured = model.target_vocab_size or model.vocab_size
            target = _rows("target_vocab_size", configured, tokenizers and tokenizers.target)
            return model.build(source, target)
        case DecoderConfig():
            return model.build(source)
        case EncoderConfig():
            return model.build(source, n_labels=len(labels))


def _rows(name: str, configured: int | None, tokenizer: Tokenizer | None) -> int:
    """The rows of an embedding: as asked, or as the tokenizer has tokens."""
    known = tokenizer.vocab_size if tokenizer else 0
    if configured is not None and configured < known:
        raise InputError(
            f"model.{name} = {configured} is too small: the tokenizer has {known} tokens"
        )
    return configured or known


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
    except FileNotFoundError as error:
        raise InputError(f"{file}: missing: the run is damaged") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: damaged: {error}") from error
