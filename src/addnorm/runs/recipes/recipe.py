"""Recipes: TOML files that fully describe a run, validated before it starts."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from addnorm.config import classes_in, config, hints_of, problem_of
from addnorm.convert.core.modules import places_of
from addnorm.data import Corpus, DataConfig, RecordsConfig
from addnorm.data.conversation import PLAIN
from addnorm.data.example import kind_named
from addnorm.data.tokenizing.tokenizers import TokenizerConfig
from addnorm.errors import InputError
from addnorm.files import read_toml
from addnorm.models import DecoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.parts import FROM_FILE, chooses, family_of, kind_of
from addnorm.runs.recipes.chat_template import chat_template
from addnorm.runs.recipes.consistency import Location, check_input, check_training
from addnorm.runs.recipes.custom_parts import check_imports, import_named
from addnorm.runs.recipes.error_messages import explain, written_path
from addnorm.runs.recipes.parallel_plan import check_parallel
from addnorm.runs.recipes.starting_model import MODEL, merged, model_tree
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.registry import task_of_training
from addnorm.tasks.task import Task
from addnorm.training.parallel.plan import ParallelTrainingConfig
from addnorm.training.settings import TrainConfig


@config
class Recipe:
    """The tables of a recipe; images alone have no tokenizer.

    With `train.start`, the tokenizer is that of the folder, and so is all of the model that is not
    written. A model from elsewhere has no data.
    """

    data: DataConfig | None = None
    """The data to learn from, and to validate and test on."""
    tokenizer: TokenizerConfig | None = None
    """How text becomes token ids; images have none, and with `train.start` it is that of the
    folder.
    """
    model: ModelConfig
    """The architecture: the kind of model, its sizes and its parts."""
    train: TrainConfig
    """How long to train, in which batches, by which optimiser, and which weights stay."""
    eval: EvalConfig = EvalConfig()
    """How the model is measured, and how it decodes."""
    parallel: ParallelTrainingConfig = ParallelTrainingConfig()
    """How training is split over processes; by default there is one."""

    def corpus(self) -> Corpus:
        """Load the data. Raises `InputError` if there are none or they cannot be read."""
        if self.data is None:
            kind = _data_for(self.model)
            raise InputError(
                f"this model came without data: give some, such as `data.kind = {kind}` and "
                "files as `data.train` and `data.valid`"
            )
        corpus: Any = self.data.load()
        if not isinstance(corpus, Corpus):
            raise InputError(
                f"data: {kind_of(self.data)} loads {type(corpus).__name__}: load() returns a Corpus"
            )
        return corpus


DATA_FOR = {
    "patches": "image_files",
    "convolutions": "image_files",
    "log_mel": "audio",
    "waveform": "audio",
    "series": "series",
}
"""A kind of data by the kind of input that a model reads."""


def _data_for(model: ModelConfig) -> str:
    """The kind of data on which a model of this kind can be evaluated."""
    if isinstance(model, DecoderConfig):
        return "text"
    if model.input.kind in DATA_FOR:
        return DATA_FOR[model.input.kind]
    if isinstance(model, EncoderDecoderConfig):
        return "parallel"
    return "text" if isinstance(model.head, TokenHeadConfig) else "lines"


RECIPE = TypeAdapter(Recipe)


def read_recipe(
    file: Path, overrides: Mapping[str, str] | None = None, *, import_parts: bool = False
) -> Recipe:
    """Read the recipe in `file`, with `overrides` for fields such as `train.lr`.

    `import_parts` is for a recipe that the user explicitly asked to train: the modules listed in
    `import`, and installed packages of the parts it names, are imported. Raises `InputError` naming
    the file, the line, what is wrong and the nearest valid name.
    """
    overrides = overrides or {}
    text, tree = read_toml(file)
    names = tree.pop("import", [])
    for name, value in overrides.items():
        write_default_kinds(tree, name)
        set_field(tree, name, value)

    def place(path: list[str]) -> str:
        here = ".".join([*path, ""])
        given = [name for name in overrides if here.startswith(f"{name}.")]
        if given:
            return f"`{given[-1]}`"
        below = [f"`{name}`" for name in overrides if path and f"{name}.".startswith(here)]
        return " with ".join([f"{file}:{line_of(text, path)}", *below])

    if import_parts:
        import_named(file, names, place(["import"]))
    else:
        check_imports(file, tree)
    tables = {field.name for field in fields(Recipe)}  # pyright: ignore[reportArgumentType]
    if "data" not in tree and tables.issuperset(tree):  # else it may only be misspelt
        raise InputError(f"{place(['data'])}: data is missing.")
    tree = with_current_names(tree)
    written = tree.get("model")
    _write_start(tree, place)
    recipe = check_recipe(tree, place, from_file=not import_parts)
    if import_parts and isinstance(recipe.data, RecordsConfig):
        try:
            kind_named(recipe.data.example)
        except InputError as error:
            raise InputError(f"{place(['data', 'example'])}: {error}") from error
    check_layer_patterns(written, recipe.model, place)
    check_training(recipe.model, recipe.train, recipe.eval, place)
    check_parallel(recipe.model, recipe.train, recipe.parallel, place)
    return recipe


def _write_start(tree: dict[str, Any], place: Location) -> None:
    """Merge the recipe's model settings into the model from which training starts."""
    train, model = tree.get("train"), tree.get("model", {})
    start = train.get("start") if isinstance(train, dict) else None
    if isinstance(start, str) and isinstance(model, dict):
        try:
            old = _with_layer_pattern(model_tree(Path(start)))
            # The folder is not trusted: validate it before merging, so that it cannot import
            # anything.
            MODEL.validate_python(old, context=FROM_FILE)
            tree["model"] = merged(old, model)
            data = tree.get("data")
            if isinstance(data, dict) and data.get("kind") == "chat" and "template" not in data:
                template = chat_template(*places_of(Path(start)))
                data["template"] = None if template == PLAIN else template
        except ValidationError as error:
            first = problem_of(error.errors(include_url=False)[0])
            raise InputError(f"{place(['train', 'start'])}: {start}: {first}") from error
        except InputError as error:
            raise InputError(f"{place(['train', 'start'])}: {error}") from error


def check_recipe(tree: dict[str, Any], place: Location, *, from_file: bool = True) -> Recipe:
    """Validate a recipe tree; with `from_file`, custom parts are not imported.

    Raises `InputError` about the first error.
    """
    context = FROM_FILE if from_file else None
    try:
        recipe = RECIPE.validate_python(with_current_names(tree), context=context)
    except ValidationError as error:
        # Report wrong fields before missing ones, which may only be misspelt.
        first = min(error.errors(include_url=False), key=lambda e: e["type"] == "missing")
        where = place(written_path(Recipe, first))
        raise InputError(f"{where}: {explain(Recipe, first)}") from error
    _check_numbers(tree, recipe, place)
    if recipe.data is not None:
        check_input(recipe.data, recipe.tokenizer, recipe.model, recipe.train, place)
    return recipe


def _check_numbers(tree: Mapping[str, Any], made: Any, place: Location, *above: str) -> None:
    """Raise `InputError` for numbers that are too large, and for booleans in place of numbers."""
    for key, value in tree.items():
        checked, path = getattr(made, key, None), [*above, key]
        if isinstance(value, Mapping):
            _check_numbers(value, checked, place, *path)
        elif isinstance(value, bool) and isinstance(checked, int | float) and checked is not value:
            raise InputError(
                f"{place(path)}: {'.'.join(path)} = {str(value).lower()}: give a number."
            )
        elif isinstance(checked, int) and abs(checked) >= 2**62:
            raise InputError(f"{place(path)}: {'.'.join(path)} = {checked}: must be less than 2⁶².")


def check_layer_patterns(written: Any, model: ModelConfig, place: Location) -> None:
    """Raise `InputError` for a written `layer_pattern` with more entries than layers."""
    depths = {
        "layer_pattern": max(map(len, model.stacks.values())),
        "decoder_layer_pattern": len([*model.stacks.values()][-1]),
    }
    for name, depth in depths.items():
        entries = written.get(name) if isinstance(written, dict) else None
        if isinstance(entries, list) and len(entries) > depth:
            n_layers = "n_decoder_layers" if name.startswith("decoder_") else "n_layers"
            raise InputError(
                f"{place(['model', name])}: model.{name} has {len(entries)} entries, and there are "
                f"{depth} layers: leave out those that no layer takes, or raise model.{n_layers}"
            )


def with_current_names(tree: dict[str, Any]) -> dict[str, Any]:
    """Rename fields that had other names in earlier versions.

    `model.layer_pattern` was `model.cycle` in the first version. A tree with both names is
    unchanged, so that the earlier name is refused.
    """
    model = tree.get("model")
    return {**tree, "model": _with_layer_pattern(model)} if isinstance(model, dict) else tree


def _with_layer_pattern(model: dict[str, Any]) -> dict[str, Any]:
    if "cycle" not in model or "layer_pattern" in model:
        return model
    return {"layer_pattern" if key == "cycle" else key: value for key, value in model.items()}


def task_of(recipe: Recipe) -> Task:
    """The task of a recipe's model. Raises `InputError` if it has none."""
    return task_of_training(recipe.model, recipe.train.batching)


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[Any, Any]]:
    """The old and new value of each field, such as `train.lr`, that differs between two recipes."""
    before, after = (_fields(RECIPE.dump_python(r, mode="json")) for r in (old, new))
    pairs = {name: (before.get(name), after.get(name)) for name in {**before, **after}}
    return {name: (first, second) for name, (first, second) in pairs.items() if first != second}


def _fields(tree: dict[str, Any]) -> dict[str, Any]:
    """The values of a tree by dotted name."""
    named: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            named |= {f"{key}.{name}": inner for name, inner in _fields(value).items()}
        else:
            named[key] = value
    return named


# The text of a recipe.


def line_of(text: str, path: list[str]) -> int:
    """The number of the line that sets the field, or of the nearest enclosing table."""
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
    """Fill in the default kinds of the parts on the path to the field `a.b.c`.

    This allows setting `train.schedule.warmup` in a recipe with the default schedule.
    """
    here: Any = tree
    chosen: Any = Recipe
    for table in name.split(".")[:-1]:
        own = {field.name: field for field in fields(chosen)} if is_dataclass(chosen) else {}
        if table not in own:
            return
        annotation = hints_of(chosen).get(table)
        if isinstance(here.get(table), str) and chooses(annotation):
            here[table] = {"kind": here[table]}
        kind = getattr(own[table].default, "kind", None)
        here = here.setdefault(table, {} if kind is None else {"kind": kind})
        if not isinstance(here, dict):
            return
        chosen = class_of(annotation, here)


def class_of(annotation: Any, table: Mapping[str, Any]) -> Any:
    """The configuration class of a table; None if unknown."""
    classes, family = classes_in(annotation), family_of(annotation)
    if not chooses(annotation):
        return classes[0] if classes else None
    kind = table.get("kind", family and family.default)
    for cls in classes:
        if kind_of(cls) == kind:
            return cls
    try:
        return family.find(str(kind), from_file=True) if family is not None else None
    except ValueError:
        return None


def set_field(tree: dict[str, Any], name: str, value: str) -> None:
    """Set the field `a.b.c` to a value in TOML syntax; a bare word is a string.

    A table that is null, as `data` in the copy of a model that came without any, counts as empty.
    The entries of a list have numbers from 0. Raises `InputError` if `a.b` exists and is neither.
    """
    *tables, last = name.split(".")
    here: Any = tree
    for i, table in enumerate(tables):
        if isinstance(here, list):
            here = _entry(cast(list[Any], here), name, tables[i - 1], table)
            continue
        if here.get(table) is None:
            here[table] = {}
        if here[table] == {} and [*tables, last][i + 1].isdecimal():
            raise InputError(
                f"`{name}`: there is no list {table}: give it whole, such as "
                f'{".".join(tables[: i + 1])} = [{{norm = "rmsnorm"}}]'
            )
        here = here[table]
        if not isinstance(here, dict | list):
            raise InputError(f"`{name}`: {table} = {here!r} is not a table")
    if isinstance(here, list):
        raise InputError(f"`{name}`: name a field of an entry, such as {tables[-1]}.0.norm")
    try:
        here[last] = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        here[last] = value


def _entry(entries: list[Any], name: str, above: str, number: str) -> dict[str, Any]:
    """The entry of a list of tables that a path selects by index, from 0."""
    if not number.isdecimal() or int(number) >= len(entries):
        raise InputError(
            f"`{name}`: {above} has the entries 0 to {len(entries) - 1}, and no {number}"
        )
    entry = entries[int(number)]
    if not isinstance(entry, dict):
        raise InputError(f"`{name}`: {above}.{number} = {entry!r} is not a table")
    return cast(dict[str, Any], entry)
