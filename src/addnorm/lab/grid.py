"""The variants of a recipe: every combination of the values of the fields that vary."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from addnorm.errors import InputError
from addnorm.runs.recipe import RECIPE, Recipe, check_recipe, read_recipe, set_field

Fields = Mapping[str, str]
"""Fields of a recipe with their values, written as in TOML; a bare word is a string."""

Reader = Callable[[Fields], Recipe]
"""Reads a recipe with some fields replaced. Raises `InputError`."""

EXAMPLE = "model.norm=layernorm,rmsnorm"
OPEN, CLOSED = "{[(", "}])"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A recipe with some fields replaced; without a recipe, `refused` says what is wrong with it.

    `adjusted` are fields that were changed so that variants cost the same.
    """

    name: str
    fields: Fields
    recipe: Recipe | None = None
    refused: str = ""
    adjusted: Fields = field(default_factory=dict[str, str])


def read_vary(words: Sequence[str]) -> dict[str, list[str]]:
    """Read `model.norm=layernorm,rmsnorm` for each field that varies.

    Raises `InputError` for anything else, for a field given twice or a value given twice.
    """
    found: dict[str, list[str]] = {}
    for word in words:
        name, equals, values = word.removeprefix("--").partition("=")
        name, given = name.strip(), split_values(values)
        if not (equals and name and all(given)):
            raise InputError(f"`vary = {word}`: a field and its values, as in `vary = {EXAMPLE}`")
        if name in found:
            raise InputError(f"`vary` {name} is given twice: name all of its values once")
        if twice := next((one for one in given if given.count(one) > 1), None):
            raise InputError(f"`vary` {name}: {twice} is there twice")
        found[name] = given
    return found


def split_values(text: str) -> list[str]:
    """Split at commas that are in no brackets and no quotes: `a,{kind = "b", w = 1}` is two."""
    values, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        depth += (letter in OPEN) - (letter in CLOSED) if not quote else 0
        if letter == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += letter
    return [value.strip() for value in values]


def reader_of(recipe: Path | Recipe, overrides: Fields | None = None) -> Reader:
    """A reader of variants of a recipe file, or of a recipe made in Python."""
    fixed = dict(overrides or {})
    if isinstance(recipe, Path):
        return lambda fields: read_recipe(recipe, fixed | dict(fields), import_parts=True)

    def read(fields: Fields) -> Recipe:
        tree: dict[str, Any] = RECIPE.dump_python(recipe, mode="json")
        for name, value in (fixed | dict(fields)).items():
            set_field(tree, name, value)
        return check_recipe(tree, lambda path: ".".join(path) or "recipe", from_file=False)

    return read


def variants_of(read: Reader, vary: Mapping[str, Sequence[str]]) -> list[Variant]:
    """Every combination of the values, the first value of each field first.

    A combination that is refused keeps the reason. Raises `InputError` if the first is refused,
    with which all others are compared, or if nothing varies.
    """
    if not vary:
        raise InputError(f"nothing varies: give a field and its values, as in `vary = {EXAMPLE}`")
    names = short_names(list(vary))
    found: list[Variant] = []
    for values in product(*vary.values()):
        fields = dict(zip(vary, values, strict=True))
        name = ", ".join(f"{short}={v}" for short, v in zip(names, values, strict=True))
        found.append(_variant(read, name, fields))
    if found[0].recipe is None:
        raise InputError(f"{found[0].name}, the first variant, is refused: {found[0].refused}")
    return found


def without_twins(variants: Sequence[Variant]) -> list[Variant]:
    """Refuse a variant whose recipe is that of an earlier one, seed aside: it would be no other."""
    seen: dict[str, str] = {}
    found: list[Variant] = []
    for variant in variants:
        if variant.recipe is None:
            found.append(variant)
            continue
        tree = RECIPE.dump_python(variant.recipe, mode="json")
        tree["train"].pop("seed")
        twin = seen.setdefault(json.dumps(tree, sort_keys=True), variant.name)
        same = twin != variant.name
        reason = f"the same recipe as {twin}; seeds need not be varied"
        found.append(replace(variant, recipe=None, refused=reason) if same else variant)
    return found


def _variant(read: Reader, name: str, fields: Fields) -> Variant:
    try:
        return Variant(name=name, fields=fields, recipe=read(fields))
    except InputError as error:
        return Variant(name=name, fields=fields, refused=str(error))


def short_names(paths: Sequence[str]) -> list[str]:
    """The last word of each field, or as many as tell it from the others."""

    def short(path: str) -> str:
        words = path.split(".")
        others = [one for one in paths if one != path]
        ends = (".".join(words[-n:]) for n in range(1, len(words) + 1))
        return next(
            (end for end in ends if not any(f".{one}".endswith(f".{end}") for one in others)), path
        )

    return [short(path) for path in paths]


def toml_value(value: Any) -> str:
    """A Python value, or a configuration, as it is written in a recipe."""
    if hasattr(value, "tolist"):  # numpy's, torch's and pandas' numbers and lists
        value = value.tolist()
    match value:
        case None:
            raise InputError("vary: None has no form in a recipe: give what it stands for")
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return value
        case list() | tuple():
            return f"[{', '.join(_inner(one) for one in value)}]"
        case Mapping():
            inner = (f"{key} = {_inner(one)}" for key, one in value.items() if one is not None)
            return f"{{{', '.join(inner)}}}"
        case _:
            return toml_value(TypeAdapter(type(value)).dump_python(value, mode="json"))


def _inner(value: Any) -> str:
    if not isinstance(value, str):
        return toml_value(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
