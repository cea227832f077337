"""Recipe fields on the command line: `--train.lr 3e-4` or `--train.lr=3e-4`."""

import ast
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from addnorm.errors import InputError, choices, nearest

TABLES = ("data", "tokenizer", "model", "train", "eval", "parallel")
PARTS = ("data", "tokenizer")
"""Tables that are a single part, for which a bare word is allowed: `--tokenizer char`."""
SETTINGS = {
    "train": ("addnorm.training.settings", "TrainConfig"),
    "eval": ("addnorm.tasks.eval_config", "EvalConfig"),
    "parallel": ("addnorm.training.parallel.plan", "ParallelTrainingConfig"),
}
"""The tables whose fields do not depend on a kind, and the classes that list them."""


def fields_to_keep_model(words: Iterable[str], instead: str) -> dict[str, str]:
    """Like `fields_given`, but reject fields of the model, which `instead` changes.

    Raises `InputError` for one, with its name in place of `PATH`.
    """
    fields = fields_given(words)
    for name in fields:
        table, _, path = name.partition(".")
        if table == "model":
            how = instead.replace("PATH", path)
            raise InputError(f"`{name}`: parts of the model are changed by {how}")
    return fields


class UnknownWordError(InputError):
    """An argument other than the options of its command; `message_of` adds the nearest."""

    def __init__(self, word: str) -> None:
        self.word = word
        super().__init__(f"Unknown option: {word}.")


def fields_given(words: Iterable[str]) -> dict[str, str]:
    """The values of recipe fields by name.

    Raises `InputError` for anything that is not a field and a value.
    """
    fields: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.removeprefix("--").partition("=")
        table, _, field = name.partition(".")
        whole = name in PARTS
        if not (word.startswith("--") and (whole or (field and table in TABLES))):
            if name == "resume":
                raise InputError(
                    "--resume is for `addnorm train`, which resumes any run that was stopped, "
                    "as `addnorm train --resume runs/my`: this command begins a new one"
                )
            raise UnknownWordError(word)
        if not equals:
            value = next(rest, None)
        if value is None:
            raise InputError(f"--{name} needs a value")
        if name in fields:
            raise InputError(f"--{name} is given twice: {fields[name]} and {value}")
        _check_setting(table, field)
        fields[name] = value
    return fields


def _check_setting(table: str, field: str) -> None:
    """Raise `InputError` for an unknown field of `[train]`, `[eval]` or `[parallel]`."""
    name = field.partition(".")[0]
    if table in SETTINGS and name not in (valid := settings_of(table)):
        problem = f"{table}.{name} is not a field.{choices(name, valid)}"
        raise InputError(f"--{table}.{field}: {problem}")


def settings_of(table: str) -> list[str]:
    """The fields of one of these tables, parsed from source, since an import takes seconds."""
    module, name = SETTINGS[table]
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    [cls] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    return [ast.unparse(node.target) for node in cls.body if isinstance(node, ast.AnnAssign)]


def unknown_field(word: str, options: Iterable[str]) -> str:
    """The message for an argument that is neither option nor field, with the nearest of both."""
    name = word.removeprefix("--").partition("=")[0]
    settings = [f"{table}.{field}" for table in SETTINGS for field in settings_of(table)]
    sizes = ("d_model", "n_layers", "dropout", "max_len")
    names = [*settings, *(f"model.{size}" for size in sizes)]
    exact = [full for full in names if "." not in name and full.partition(".")[2] == name]
    hint = f" Did you mean '--{exact[0]}'?" if exact else ""
    near = hint or nearest(f"--{name}", [*options, *(f"--{full}" for full in names)])
    return f"{word!r} is neither an option nor a field such as --train.lr.{near}"
