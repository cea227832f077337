"""A recipe: one TOML file that says everything about a run, checked before anything happens."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from addnorm.config import config
from addnorm.data import DataConfig
from addnorm.data.tokenizers import TokenizerConfig
from addnorm.errors import InputError, nearest
from addnorm.models import ModelConfig
from addnorm.runs.settings import EvalConfig
from addnorm.train.settings import TrainConfig


@config
class Recipe:
    """The five tables of a recipe."""

    data: DataConfig
    tokenizer: TokenizerConfig
    model: ModelConfig
    train: TrainConfig
    eval: EvalConfig = EvalConfig()


RECIPE = TypeAdapter(Recipe)

Place = Callable[[list[str]], str]
"""Says where a field was written, for a message."""


def read_recipe(file: Path, overrides: Mapping[str, str] | None = None) -> Recipe:
    """The recipe in `file`, with fields such as `train.lr` replaced by `overrides`.

    Raises `InputError` naming the file, the line, what is wrong and the nearest valid name.
    """
    overrides = overrides or {}
    try:
        text = file.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except FileNotFoundError as error:
        names = [p.name for p in file.parent.glob("*.toml")] if file.parent.is_dir() else []
        raise InputError(f"{file}: no such recipe.{nearest(file.name, names)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file}: not valid TOML: {error}") from error
    for name, value in overrides.items():
        set_field(tree, name, value)

    def place(path: list[str]) -> str:
        given = [name for name in overrides if ".".join([*path, ""]).startswith(f"{name}.")]
        return f"--{given[0]}" if given else f"{file}:{line_of(text, path)}"

    return check_recipe(tree, place)


def check_recipe(tree: dict[str, Any], place: Place) -> Recipe:
    """The recipe that `tree` describes. Raises `InputError` about the first thing wrong with it."""
    try:
        return RECIPE.validate_python(tree)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = [str(key) for key in written_path(tree, first["loc"])]
        raise InputError(f"{place(path)}: {explain(first, path)}") from error


def explain(error: ErrorDetails, path: list[str]) -> str:
    """One sentence on a pydantic error: what is wrong, and what would be right."""
    name, given = ".".join(path), error["input"]
    context: dict[str, Any] = error.get("ctx", {})
    match error["type"]:
        case "unexpected_keyword_argument":
            return f"{name} is not a field.{_choices(path[-1], field_names(error['loc'][:-1]))}"
        case "union_tag_invalid":
            tag = str(context["tag"])
            return f"{name}.kind = {tag!r} does not exist.{_choices(tag, _quoted(context['expected_tags']))}"
        case "union_tag_not_found":
            return f"{name}.kind is missing.{_choices('', kinds_at(error['loc']))}"
        case "model_attributes_type" | "dataclass_type":
            return f"{name} = {given!r} is not a table. Write for example {path[-1]} = {{kind = {given!r}}}."
        case "literal_error":
            return f"{name} = {given!r} does not exist.{_choices(str(given), _quoted(context['expected']))}"
        case "missing":
            return f"{name} is missing."
        case "value_error":
            return f"{name}: {context['error']}"
        case _:
            return f"{name} = {given!r}: {error['msg'][0].lower()}{error['msg'][1:]}."


def _choices(name: str, valid: list[str]) -> str:
    return f"{nearest(name, valid)} Valid: {', '.join(valid)}."


def _quoted(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


# pydantic's locations name the chosen kind of each union; what a person wrote does not.


def written_path(tree: Any, loc: tuple[int | str, ...]) -> list[int | str]:
    """The keys of `loc` as they stand in the file."""
    path: list[int | str] = []
    for key in loc:
        if isinstance(tree, dict) and key not in tree and tree.get("kind") == key:
            continue
        path.append(key)
        known = isinstance(tree, dict) and key in tree
        tree = tree[key] if known or isinstance(tree, list) else None
    return path


def config_at(loc: tuple[int | str, ...]) -> Any:
    """The configuration class, or the union of them, at a pydantic location."""
    here: Any = Recipe
    for key in loc:
        members = _members(here)
        chosen = [m for m in members if is_dataclass(m) and getattr(m, "kind", None) == key]
        if chosen and len(members) > 1:
            here = chosen[0]
        else:
            here = get_type_hints(here, include_extras=True)[str(key)]
    return here


def field_names(loc: tuple[int | str, ...]) -> list[str]:
    """The names of the fields that may stand at a pydantic location."""
    return [f.name for m in _members(config_at(loc)) if is_dataclass(m) for f in fields(m)]


def kinds_at(loc: tuple[int | str, ...]) -> list[str]:
    """The kinds that the union at a pydantic location knows."""
    return [m.kind for m in _members(config_at(loc)) if is_dataclass(m)]


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    return get_args(annotation) or (annotation,)


# The text of a recipe.


def line_of(text: str, path: list[str]) -> int:
    """The number of the line that writes the field, or else the nearest table around it."""
    best, table = 1, []
    depth = 0
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.match(r"\s*\[+([^\]]+)\]", line):
            table = [part.strip() for part in header[1].split(".")]
            here = table
        elif key := re.match(r"\s*([\w.-]+)\s*=", line):
            here = [*table, *key[1].split(".")]
        else:
            continue
        if here == path[: len(here)] and len(here) > depth:
            best, depth = number, len(here)
    return best


def set_field(tree: dict[str, Any], name: str, value: str) -> None:
    """Set the field `a.b.c` to a value written as in TOML; a bare word is a string."""
    *tables, last = name.split(".")
    for table in tables:
        tree = tree.setdefault(table, {})
        if not isinstance(tree, dict):
            raise InputError(f"--{name}: {table} is not a table")
    try:
        tree[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        tree[last] = value
