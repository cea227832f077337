"""Changing parts of a model configuration: `norm=rmsnorm`, `attention.n_kv_heads=2`."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields, is_dataclass, replace
from types import NoneType
from typing import Any, get_args

from addnorm.config import classes_in, hints_of
from addnorm.errors import InputError
from addnorm.models import ModelConfig
from addnorm.parts import kind_of
from addnorm.runs.recipes.recipe import (
    RECIPE,
    Recipe,
    check_layer_patterns,
    check_recipe,
    class_of,
    set_field,
)
from addnorm.runs.recipes.starting_model import merged, tree_of

CARRIED = {
    "norm": ("eps",),
    "qk_norm": ("eps",),
    "v_norm": ("eps",),
    "feedforward": ("d_ff", "dropout", "expert"),
    "expert": ("d_ff", "dropout"),
}
"""Fields that are kept when a part is replaced by one of another kind."""


def changed(recipe: Recipe, sets: Sequence[str]) -> Recipe:
    """Apply changes of the form `path=value` to the model of a recipe.

    Paths are relative to `model`. A value is written as in TOML, or is a bare word. For a part that
    has kinds, the word is the kind; a table of the same kind, or without a kind, changes only the
    fields it names. "none" removes an optional part. Raises `InputError` naming the path and the
    nearest valid name.
    """
    model = recipe.model
    given = dict(map(_split, sets))
    tree: dict[str, Any] = RECIPE.dump_python(recipe, mode="json")
    for path, text in given.items():
        _set(tree, model, path, text)
    if tree["model"]["kind"] != model.kind:
        raise InputError(f"`sets` kind: the model is of kind {model.kind!r}, which a swap keeps")
    _keep_cross_attention(tree["model"], model)

    def place(path: list[str]) -> str:
        name = ".".join(path)
        above = [path for path in given if f"{name}.".startswith(f"model.{path}.")]
        return f"`sets` {above[-1]}" if above else "`sets`"

    new = check_recipe(tree, place, from_file=False)
    given_patterns = {name: tree["model"][name] for name in LAYER_PATTERNS if name in given}
    check_layer_patterns(given_patterns, new.model, place)
    if kind_of(new.model.head) != kind_of(model.head):
        raise InputError(
            "`sets` head: the kind of the head is the task: train for another one from these "
            "weights, with train.start"
        )
    return new


def with_depth(recipe: Recipe, n_layers: int) -> Recipe:
    """The recipe with `n_layers` layers."""
    return replace(recipe, model=replace(recipe.model, n_layers=n_layers))


def _split(change: str) -> tuple[str, str]:
    path, equals, text = change.partition("=")
    if not (equals and path.strip() and text.strip()):
        raise InputError(f"`sets` {change}: write it as path=value, such as norm=rmsnorm")
    return path.strip().removeprefix("model."), text.strip()


def _set(tree: dict[str, Any], model: ModelConfig, path: str, text: str) -> None:
    *tables, last = ["model", *path.split(".")]
    if tables[1:] and tables[1] in LAYER_PATTERNS:
        _write_layer(tree["model"], model, [*tables[1:], last])
    here: Any = tree
    for table in tables:
        here = here[int(table)] if isinstance(here, list) else here.setdefault(table, {})
        if not isinstance(here, dict) and table not in LAYER_PATTERNS:
            raise InputError(f"`sets` {path}: {table} = {here!r} is not a table")
    assert isinstance(here, dict)
    old = here.get(last)
    annotation = _annotation(tree, [*tables, last])
    kinds = [kind_of(config) for config in classes_in(annotation) if _has_kind(config)]
    written: dict[str, Any] = {}
    set_field(written, "value", text)
    value = written["value"]
    is_word = isinstance(old, str) and NoneType not in get_args(annotation)
    if value == "none" and "none" not in kinds and not is_word:
        value = None
    elif kinds and isinstance(value, str):
        value = {"kind": value}
    if kinds and isinstance(value, dict):
        chosen = class_of(annotation, value)
        names = {field.name for field in fields(chosen)} if is_dataclass(chosen) else set[str]()
        carried = _carried(last, _written_out(old, model.d_model), names)
        before: dict[str, Any] = old if isinstance(old, dict) else {}
        same = value.get("kind") in (None, before.get("kind"))
        value = merged(before, value) if before and same else carried | value
    here[last] = value


LAYER_PATTERNS = ("layer_pattern", "decoder_layer_pattern")
"""The fields with an entry for each layer in turn."""


def _write_layer(tree: dict[str, Any], model: ModelConfig, path: Sequence[str]) -> None:
    """Write out every layer, so that a path such as `layer_pattern.1.norm` changes that one alone.

    A part that the layer does not have itself is first the model's. Raises `InputError` for a layer
    that there is not.
    """
    name, number, *part = path
    of_decoder = name.startswith("decoder_")
    depth = (of_decoder and tree["n_decoder_layers"]) or tree["n_layers"]
    where = f"`sets` {'.'.join(path)}"
    if not number.isdecimal() or not part:
        raise InputError(f"{where}: name a layer, counted from 0, and a part: {name}.0.norm=…")
    if int(number) >= depth:
        raise InputError(f"{where}: layers are counted from 0, and there are {depth}")
    pattern: list[dict[str, Any]] = tree[name] or (of_decoder and tree["layer_pattern"]) or [{}]
    tree[name] = [deepcopy(pattern[i % len(pattern)]) for i in range(depth)]
    entry, field = tree[name][int(number)], part[0]
    if entry.get(field) is None and field in tree:
        own = tree.get(f"decoder_{field}") if of_decoder else None
        entry[field] = deepcopy(own or tree[field])
    if field == "attention" and entry.get("pattern") is not None:
        entry["attention"]["pattern"] = entry.pop("pattern")


def _annotation(tree: dict[str, Any], path: list[str]) -> Any:
    """The type annotation of the field at a path, given the kinds of the parts above it."""
    here: Any = tree
    chosen: Any = Recipe
    annotation: Any = None
    for key in path:
        if isinstance(here, list):  # an entry is of the class of all
            here = here[int(key)]
            continue
        annotation = hints_of(chosen).get(key) if is_dataclass(chosen) else None
        here = here.get(key) if isinstance(here, dict) else None
        chosen = class_of(annotation, here if isinstance(here, dict) else {})
    return annotation


def _has_kind(config: Any) -> bool:
    return any(field.name == "kind" for field in fields(config))


def _carried(name: str, old: Any, allowed: set[str]) -> dict[str, Any]:
    """The fields that a part of another kind takes over from the part it replaces."""
    if not isinstance(old, dict):
        return {}
    carried = {field: old[field] for field in CARRIED.get(name, ()) if field in old}
    if name == "feedforward" and "activation" in old:
        carried["expert"] = old
    return {field: value for field, value in carried.items() if field in allowed}


def _written_out(old: Any, d_model: int) -> Any:
    """A feed-forward configuration with its default width written out."""
    widths = {"mlp": 4 * d_model, "gated": 8 * d_model // 3}
    if not isinstance(old, dict) or old.get("d_ff", 0) is not None or old["kind"] not in widths:
        return old
    return {**old, "d_ff": widths[old["kind"]]}


def _keep_cross_attention(tree: dict[str, Any], model: ModelConfig) -> None:
    """Set cross-attention explicitly if the self-attention that it was derived from is replaced."""
    mixer = tree.get("decoder_attention") or tree.get("attention")
    if not isinstance(mixer, dict) or mixer.get("kind") == "attention":
        return
    if model.kind == "encoder_decoder" and tree.get("cross_attention") is None:
        tree["cross_attention"] = tree_of(
            replace(model, cross_attention=model.decoder_parts.cross_attention_config)
        )["cross_attention"]
