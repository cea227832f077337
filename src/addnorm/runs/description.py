"""What a run or a recipe consists of, as a tree for people to read."""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from rich.tree import Tree

from addnorm.runs.folder import build_model, read_settings
from addnorm.runs.recipe import read_recipe
from addnorm.train.average import weights_of
from addnorm.train.checkpoint import checkpoints_in


def describe(what: Path) -> Tree:
    """The parts of a run folder or a recipe file; of a run, also its parameters and progress.

    Raises `InputError` where it is neither.
    """
    if what.is_file() or what.suffix == ".toml":
        tree = Tree(f"recipe {what}")
        _add(tree, read_recipe(what))
        return tree
    recipe, tokenizers, labels = read_settings(what)
    tree = Tree(f"run {what}")
    model = build_model(recipe, tokenizers, labels)
    tree.add(f"parameters {sum(w.numel() for w in weights_of(model).values()):,}")
    both = {tokenizers.source.vocab_size, tokenizers.target.vocab_size}
    tree.add(f"vocabulary {' and '.join(f'{n:,}' for n in sorted(both))}")
    if labels:
        tree.add(f"labels {', '.join(labels)}")
    saved = checkpoints_in(what / "checkpoints")
    tree.add(f"checkpoints {', '.join(path.name for path in saved) or 'none'}")
    tree.add("trained" if (what / "model.safetensors").exists() else "training not finished")
    if scores := _last_validation(what / "metrics.jsonl"):
        tree.add("validation " + " · ".join(f"{k} {v:.4g}" for k, v in scores.items()))
    _add(tree.add("recipe"), recipe)
    return tree


def _add(tree: Tree, settings: Any) -> None:
    """Add the fields that differ from their defaults, and the kind of every part."""
    for field in fields(settings):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            _add(tree.add(f"{field.name} [bold]{getattr(value, 'kind', '')}[/bold]"), value)
        elif field.name != "kind" and value != field.default:
            tree.add(f"{field.name} = {value}")


def _last_validation(file: Path) -> dict[str, float]:
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    rows = [json.loads(line) for line in lines if '"valid_' in line]
    return {k.removeprefix("valid_"): v for k, v in rows[-1].items() if k != "step"} if rows else {}
