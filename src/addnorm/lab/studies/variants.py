"""The variants of a recipe: combinations of values, refused ones, and the score to compare."""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from addnorm.errors import InputError, choices
from addnorm.parts import dump, is_ours
from addnorm.runs.recipes.recipe import RECIPE, Recipe, check_recipe, read_recipe, set_field
from addnorm.runs.train.train_run import TrainingSetup
from addnorm.tasks.hidden import Hidden
from addnorm.tasks.language import Language
from addnorm.tasks.task import Task

Fields = Mapping[str, str]
"""Fields of a recipe with their values, written as in TOML; a bare word is a string."""

Reader = Callable[[Fields], Recipe]
"""Reads a recipe with some fields replaced. Raises `InputError`."""

EXAMPLE = "model.norm=layernorm,rmsnorm"
OPEN, CLOSED = "{[(", "}])"


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A recipe with some fields replaced; `refused` is the reason if it cannot be trained.

    `adjusted` are fields that were changed so that variants cost the same.
    """

    name: str
    fields: Fields
    recipe: Recipe | None = None
    refused: str = ""
    adjusted: Fields = field(default_factory=dict[str, str])

    def refuse(self, reason: str) -> "Variant":
        """The variant without its recipe, refused for this reason."""
        return replace(self, recipe=None, refused=reason)


def read_vary(words: Sequence[str]) -> dict[str, list[str]]:
    """Parse `model.norm=layernorm,rmsnorm` for each field that varies.

    Raises `InputError` for anything else, for a field given twice or a value given twice.
    """
    vary: dict[str, list[str]] = {}
    for word in words:
        name, equals, text = word.removeprefix("--").partition("=")
        name, values = name.strip(), split_values(text)
        if not (equals and name and all(values)):
            raise InputError(f"`vary = {word}`: a field and its values, as in `vary = {EXAMPLE}`")
        if name in vary:
            raise InputError(f"`vary` {name} is given twice: name all of its values once")
        vary[name] = without_repeats(values, f"`vary` {name}")
    return vary


def without_repeats(values: list[str], name: str) -> list[str]:
    """The values of a field, which must not repeat.

    Raises `InputError` for a value that is given twice.
    """
    if repeated := next((value for value in values if values.count(value) > 1), None):
        raise InputError(f"{name}: {repeated} is given twice")
    return values


def split_values(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes: `a,{kind = "b", w = 1}` has two values."""
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
    """A function that reads variants of a recipe, given as a file or made in Python."""
    fixed = dict(overrides or {})
    if isinstance(recipe, Path):
        return lambda fields: read_recipe(recipe, fixed | dict(fields), import_parts=True)

    def read(fields: Fields) -> Recipe:
        tree: dict[str, Any] = RECIPE.dump_python(recipe, mode="json")
        for name, value in (fixed | dict(fields)).items():
            set_field(tree, name, value)
        return check_recipe(tree, lambda path: ".".join(path) or "recipe", from_file=False)

    return read


def variants_of(reader: Reader, vary: Mapping[str, Sequence[str]]) -> list[Variant]:
    """Return every combination of the values; each field's first value comes first.

    A refused combination has the reason. Raises `InputError` if the first is refused, with which
    all others are compared, or if nothing varies.
    """
    if not vary:
        raise InputError(f"nothing varies: give a field and its values, as in `vary = {EXAMPLE}`")
    names = short_names(list(vary))
    variants: list[Variant] = []
    for values in product(*vary.values()):
        fields = dict(zip(vary, values, strict=True))
        name = ", ".join(f"{short}={v}" for short, v in zip(names, values, strict=True))
        variants.append(_variant(reader, name, fields))
    first = variants[0]
    if first.recipe is None:
        raise InputError(f"{first.name}, the first variant, is refused: {first.refused}")
    return variants


def check_several(variants: Sequence[Variant], reason: str = "") -> None:
    """Raise `InputError`, with a refused variant's reason, unless two variants are valid."""
    if sum(variant.recipe is not None for variant in variants) < 2:
        refused = "; ".join(f"{v.name}: {v.refused}" for v in variants if v.refused)
        first = variants[0].name
        raise InputError(f"nothing is left to compare {first} with: {refused or reason}")


def without_twins(variants: Sequence[Variant]) -> list[Variant]:
    """Refuse variants that differ from an earlier one only in the seed; return all."""
    names: dict[str, str] = {}
    unique: list[Variant] = []
    for variant in variants:
        if variant.recipe is None:
            unique.append(variant)
            continue
        tree = RECIPE.dump_python(variant.recipe, mode="json")
        tree["train"].pop("seed")
        twin = names.setdefault(json.dumps(tree, sort_keys=True), variant.name)
        reason = f"the same recipe as {twin}; seeds need not be varied"
        unique.append(variant if twin == variant.name else variant.refuse(reason))
    return unique


def _variant(reader: Reader, name: str, fields: Fields) -> Variant:
    try:
        return Variant(name=name, fields=fields, recipe=reader(fields))
    except InputError as error:
        return Variant(name=name, fields=fields, refused=str(error))


def short_names(paths: Sequence[str]) -> list[str]:
    """Return the last word of each field, or as many words as distinguish it from the others."""

    def short(path: str) -> str:
        words = path.split(".")
        others = [f".{other}" for other in paths if other != path]
        ends = (".".join(words[-n:]) for n in range(1, len(words) + 1))
        return next((end for end in ends if not any(o.endswith(f".{end}") for o in others)), path)

    return [short(path) for path in paths]


LONGEST_LABEL = 24
"""The most characters of a value in a label."""


def short_labels(variants: Sequence[Variant]) -> dict[str, str]:
    """A short label for each variant's name: a part by its kind and by what distinguishes it.

    `{kind = "gated", d_ff = 64}` is `gated` next to `mlp`, and `gated d_ff=64` next to another
    gated one. A name whose label would be that of another variant stays whole.
    """
    short = short_names(list(variants[0].fields))
    fields = [variant.fields for variant in variants]
    columns = [_short_values([values[name] for values in fields]) for name in fields[0]]
    labels = [
        ", ".join(f"{name}={value}" for name, value in zip(short, values, strict=True))
        for values in zip(*columns, strict=True)
    ]
    names = [variant.name for variant in variants]
    return {
        name: label if labels.count(label) == 1 else name
        for name, label in zip(names, labels, strict=True)
    }


def _short_values(values: Sequence[str]) -> list[str]:
    """The short form of each value of a field."""
    tables = [_table(value) for value in values]
    shown: list[str] = []
    for value, table in zip(values, tables, strict=True):
        if table is None:
            shown.append(value if len(value) <= LONGEST_LABEL else f"{value[:LONGEST_LABEL]}…")
            continue
        alike = [other for other in tables if other and other.get("kind") == table.get("kind")]
        shared = {k for k, v in table.items() if all(k in o and o[k] == v for o in alike)}
        own = [f"{k}={v}" for k, v in table.items() if k not in shared]
        kind = str(table.get("kind", "")).rpartition(":")[2]
        shown.append(" ".join([*([kind] if kind else []), *own]) or value)
    return shown


def _table(value: str) -> dict[str, Any] | None:
    """A value as a table; None if it is not one."""
    try:
        table = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return None
    return table if isinstance(table, dict) else None


def toml_value(value: Any) -> str:
    """Convert a Python value or a configuration to TOML."""
    if hasattr(value, "tolist"):  # numpy's, torch's and pandas' numbers and lists
        value = value.tolist()
    match value:
        case None:
            raise InputError(
                "vary: None has no form in a recipe: give the value that it stands for"
            )
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return value
        case list() | tuple():
            return f"[{', '.join(map(_inner, value))}]"
        case Mapping():
            inner = (f"{key} = {_inner(v)}" for key, v in value.items() if v is not None)
            return f"{{{', '.join(inner)}}}"
        case _:
            return toml_value(_as_table(value))


def _as_table(value: Any) -> Any:
    """A configuration as a table; a custom one's kind names its class."""
    if is_dataclass(value) and not is_ours(type(value)):
        return dump(value)
    return TypeAdapter(type(value)).dump_python(value, mode="json")


def _inner(value: Any) -> str:
    if not isinstance(value, str):
        return toml_value(value)
    return json.dumps(value, ensure_ascii=False)


PER_TOKEN = ("loss", "perplexity")
"""Scores of tokens, which cannot be compared with those of another tokenizer."""

PER_CHARACTER = "bits_per_character"
"""The score of a language model that does not depend on its tokenizer."""


def check_start(variants: Sequence[Variant], say: Callable[[str], None]) -> list[Variant]:
    """Refuse variants whose data cannot be read or model cannot be built; return all.

    Variants with the same data and model are checked once. Raises `InputError` if the first
    variant fails, with which all others are compared.
    """
    problems: dict[str, str] = {}
    checked: list[Variant] = []
    for variant in variants:
        if variant.recipe is None:
            checked.append(variant)
            continue
        key = _needed_to_start(variant.recipe)
        if key not in problems:
            say(f"checking {variant.name}")
            problems[key] = _problem(variant.recipe)
        problem = problems[key]
        if problem and not checked:
            raise InputError(f"{variant.name}, the first variant: {problem}")
        checked.append(variant.refuse(problem) if problem else variant)
    return checked


def _problem(recipe: Recipe) -> str:
    try:
        TrainingSetup(recipe)
    except InputError as error:
        return str(error)
    return ""


def _needed_to_start(recipe: Recipe) -> str:
    """The fields of a recipe that decide whether training can start."""
    tree: dict[str, Any] = RECIPE.dump_python(recipe, mode="json")
    tree["train"] = {name: tree["train"].get(name) for name in ("batching", "start")}
    return json.dumps(tree, sort_keys=True)


def comparable(variants: Sequence[Variant], task: Task, metric: str | None, usual: str) -> str:
    """Return the score by which variants are compared: `metric`, or the `usual` one of their task.

    Language models with different tokenizers are compared by bits per character. Raises
    `InputError` for a score of tokens where these differ, and for one that the task does not have.
    """
    language = isinstance(task, Language)
    metrics = (*task.metrics, PER_CHARACTER) if language else task.metrics
    if metric is not None and metric not in metrics:
        raise InputError(
            f"`metric = {metric}`: not measured for {task.name}.{choices(metric, metrics)}"
        )
    if task.labels or not tokens_differ(variants):
        return metric or usual
    if metric is None and language:
        return PER_CHARACTER
    per_token = metrics if isinstance(task, Hidden) else PER_TOKEN
    if (metric or usual) in per_token:
        others = [name for name in metrics if name not in per_token]
        hint = f": take `metric` = {' or '.join(others)}" if others else ""
        raise InputError(
            f"the variants have different tokens, of which the {metric or usual} cannot be "
            f"compared{hint}"
        )
    return metric or usual


def tokens_differ(variants: Sequence[Variant]) -> bool:
    """Return whether variants use different tokenizers, or learn them from different data."""
    sources: set[str] = set()
    for variant in variants:
        if variant.recipe is not None:
            tree = RECIPE.dump_python(variant.recipe, mode="json")
            tokenizer, start = tree.get("tokenizer"), tree["train"].get("start")
            source = [tokenizer, tree["data"] if tokenizer else None, start]
            sources.add(json.dumps(source, sort_keys=True))
    return len(sources) > 1
