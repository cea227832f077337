"""A recipe: one TOML file that says everything about a run, checked before anything happens."""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from pydantic import TypeAdapter, ValidationError

from addnorm.config import config
from addnorm.data import Corpus, DataConfig, ImagesConfig
from addnorm.data.examples import Task
from addnorm.data.tokenizers import TokenizerConfig
from addnorm.errors import InputError, nearest
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.nn.heads import ClassificationHeadConfig, TaggingHeadConfig
from addnorm.parts import kind_of
from addnorm.runs.mistakes import classes_in, explain, written_path
from addnorm.runs.settings import MEASURED, EvalConfig
from addnorm.runs.start import merged, model_tree
from addnorm.train.settings import TrainConfig


@config
class Recipe:
    """The five tables of a recipe; images alone have no tokenizer.

    With `train.start`, the tokenizer is that of the folder, and so is all of the model that is not
    written. A model from elsewhere has no data.
    """

    data: DataConfig | None = None
    tokenizer: TokenizerConfig | None = None
    model: ModelConfig
    train: TrainConfig
    eval: EvalConfig = EvalConfig()

    def corpus(self) -> Corpus:
        """The data. Raises `InputError` where none are named, or they cannot be read."""
        if self.data is None:
            raise InputError(
                "this model came without data: name some, such as --data.kind text "
                "--data.train FILE --data.valid FILE"
            )
        return self.data.load()


RECIPE = TypeAdapter(Recipe)

Place = Callable[[list[str]], str]
"""Says where a field was written, for a message."""


def read_recipe(file: Path, overrides: Mapping[str, str] | None = None) -> Recipe:
    """The recipe in `file`, with fields such as `train.lr` replaced by `overrides`.

    Raises `InputError` naming the file, the line, what is wrong and the nearest valid name.
    """
    overrides = overrides or {}
    text = _read(file)
    tree = _parse(file, text)
    for name, value in overrides.items():
        write_default_kinds(tree, name)
        set_field(tree, name, value)

    def place(path: list[str]) -> str:
        given = [name for name in overrides if ".".join([*path, ""]).startswith(f"{name}.")]
        return f"--{given[-1]}" if given else f"{file}:{line_of(text, path)}"

    if "data" not in tree:
        raise InputError(f"{place(['data'])}: data is missing.")
    tree = with_current_names(tree)
    _write_start(tree, place)
    recipe = check_recipe(tree, place)
    _check_task(recipe, place)
    _check_metric(recipe, place)
    return recipe


def _write_start(tree: dict[str, Any], place: Place) -> None:
    """Write the model of the folder that training begins with, under what the recipe says of it."""
    train, model = tree.get("train"), tree.get("model", {})
    start = train.get("start") if isinstance(train, dict) else None
    if isinstance(start, str) and isinstance(model, dict):
        try:
            tree["model"] = merged(_with_layer_pattern(model_tree(Path(start))), model)
        except InputError as error:
            raise InputError(f"{place(['train', 'start'])}: {error}") from error


def _read(file: Path) -> str:
    try:
        return file.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        names = [path.name for path in file.parent.glob("*.toml")]
        raise InputError(f"{file}: no such recipe.{nearest(file.name, names)}") from error
    except OSError as error:
        raise InputError(f"{file}: no recipe can be read there: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise InputError(f"{file}:{line}: a recipe is UTF-8; this is not") from error


def _parse(file: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        found = re.match(r"line (\d+)", where)
        line = int(found[1]) if found else text.rstrip().count("\n") + 1
        raise InputError(f"{file}:{line}: not valid TOML: {what}") from error
    except RecursionError as error:
        raise InputError(f"{file}: not a recipe: nested too deep") from error


def check_recipe(tree: dict[str, Any], place: Place) -> Recipe:
    """The recipe that `tree` describes. Raises `InputError` about the first thing wrong with it."""
    try:
        recipe = RECIPE.validate_python(with_current_names(tree))
    except ValidationError as error:
        # A field that is missing may only be misspelt: what is there and wrong comes first.
        first = min(error.errors(include_url=False), key=lambda e: e["type"] == "missing")
        where = place(written_path(Recipe, first))
        raise InputError(f"{where}: {explain(Recipe, first)}") from error
    _check_input(recipe, place)
    return recipe


def with_current_names(tree: dict[str, Any]) -> dict[str, Any]:
    """The tree of a recipe with fields under their current names, where it has earlier ones.

    `model.layer_pattern` was `model.cycle` in the first version. A tree with both names is left as
    it is, for the earlier one to be refused.
    """
    model = tree.get("model")
    return {**tree, "model": _with_layer_pattern(model)} if isinstance(model, dict) else tree


def _with_layer_pattern(model: dict[str, Any]) -> dict[str, Any]:
    if "cycle" not in model or "layer_pattern" in model:
        return model
    return {"layer_pattern" if key == "cycle" else key: value for key, value in model.items()}


def _check_input(recipe: Recipe, place: Place) -> None:
    """Raise `InputError` where data, tokenizer, model and batches are not all for the same."""
    if recipe.data is None:
        return
    images = isinstance(recipe.data, ImagesConfig)
    model, batching = recipe.model, recipe.train.batching
    reads = "tokens" if isinstance(model, DecoderConfig) else model.input.kind
    kind = f"data.kind = {recipe.data.kind!r}"
    needed = "patches" if images else "tokens"
    rules = [
        (
            reads != needed,
            "model.input.kind",
            f"the model reads {reads}, but {kind} needs model.input.kind = {needed!r}",
        ),
        (
            recipe.tokenizer is None and not images and recipe.train.start is None,
            "tokenizer",
            "tokenizer is missing.",
        ),
        (
            recipe.tokenizer is not None and recipe.train.start is not None,
            "tokenizer",
            "the tokenizer is that of train.start: leave [tokenizer] out",
        ),
        (
            recipe.tokenizer is not None and images,
            "tokenizer",
            f"images have no tokenizer: leave [tokenizer] out beside {kind}",
        ),
        (
            images and batching.kind != "examples",
            "train.batching.kind",
            f"train.batching.kind = {batching.kind!r} is for text: {kind} needs 'examples'",
        ),
    ]
    for wrong, path, message in rules:
        if wrong:
            raise InputError(f"{place(path.split('.'))}: {message}")


def _check_task(recipe: Recipe, place: Place) -> None:
    try:
        task_of(recipe)
    except InputError as error:
        raise InputError(f"{place(['model', 'head', 'kind'])}: {error}") from error


def _check_metric(recipe: Recipe, place: Place) -> None:
    metric, task = recipe.eval.metric, task_of(recipe)
    if metric is not None and metric not in MEASURED[task]:
        raise InputError(
            f"{place(['eval', 'metric'])}: eval.metric = {metric!r} is not measured for {task}. "
            f"Valid: {', '.join(MEASURED[task])}."
        )


def task_of(recipe: Recipe) -> Task:
    """The task that a recipe's model is for. Raises `InputError` where it has none."""
    match recipe.model:
        case EncoderDecoderConfig():
            return "translation"
        case DecoderConfig():
            return "language"
        case EncoderConfig(head=ClassificationHeadConfig()):
            return "classification"
        case EncoderConfig(head=TaggingHeadConfig()):
            return "tagging"
        case EncoderConfig(head=head):
            raise InputError(
                f"model.head.kind = {kind_of(head)!r} on an encoder has no task here: it gives "
                "vectors or scores of tokens. Valid: classification, tagging."
            )


def check_task(recipe: Recipe, corpus: Corpus) -> None:
    """Raise `InputError` where the model cannot learn from the data."""
    wanted = task_of(recipe)
    if corpus.task == wanted:
        return
    models: dict[Task, str] = {
        "language": "model.kind = 'decoder'",
        "translation": "model.kind = 'encoder_decoder'",
        "classification": "model.kind = 'encoder' with model.head.kind = 'classification'",
        "tagging": "model.kind = 'encoder' with model.head.kind = 'tagging'",
    }
    raise InputError(
        f"the data are for {corpus.task}, the model is for {wanted}: use {models[corpus.task]}"
    )


# The text of a recipe.


def line_of(text: str, path: list[str]) -> int:
    """The number of the line that writes the field, or else the nearest table around it."""
    best, depth = 1, 0
    table: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if header := re.match(r"\s*\[+([^\[\]]+)\]", line):
            table = here = _keys(header[1])
        elif key := re.match(r"""\s*([\w."' -]+?)\s*=""", line):
            here = [*table, *_keys(key[1])]
        else:
            continue
        if here == path[: len(here)] and len(here) > depth:
            best, depth = number, len(here)
    return best


def _keys(dotted: str) -> list[str]:
    return [part.strip(" \t\"'") for part in dotted.split(".")]


def write_default_kinds(tree: dict[str, Any], name: str) -> None:
    """Write the kinds that parts on the way to the field `a.b.c` have where nothing is said.

    So `train.schedule.warmup` can be set in a recipe that leaves the schedule at its default.
    """
    here: Any = tree
    classes: tuple[Any, ...] = (Recipe,)
    for table in name.split(".")[:-1]:
        chosen = [c for c in classes if len(classes) == 1 or c.kind == here.get("kind")]
        known = {field.name: field for field in fields(chosen[0])} if chosen else {}
        if table not in known:
            return
        kind = getattr(known[table].default, "kind", None)
        here = here.setdefault(table, {} if kind is None else {"kind": kind})
        classes = classes_in(get_type_hints(chosen[0], include_extras=True)[table])
        if not isinstance(here, dict):
            return


def set_field(tree: dict[str, Any], name: str, value: str) -> None:
    """Set the field `a.b.c` to a value written as in TOML; a bare word is a string.

    Raises `InputError` where `a.b` is there and is no table.
    """
    *tables, last = name.split(".")
    here: Any = tree
    for table in tables:
        here = here.setdefault(table, {})
        if not isinstance(here, dict):
            raise InputError(f"--{name}: {table} = {here!r} is not a table")
    try:
        here[last] = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        here[last] = value
