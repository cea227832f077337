"""Recipe fields on the command line: `--train.lr 3e-4` or `--train.lr=3e-4`."""

from collections.abc import Iterable
from dataclasses import fields as dataclass_fields

from addnorm.errors import InputError, nearest

TABLES = ("data", "tokenizer", "model", "train", "eval")
PARTS = ("data", "tokenizer")
"""Tables that are a single part, for which a bare word is allowed: `--tokenizer char`."""


def fields_given(words: Iterable[str], options: Iterable[str]) -> dict[str, str]:
    """The values of recipe fields by name; `options` are the command's other options.

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
                    "--resume is for `addnorm train`, which goes on with any run that was stopped, "
                    "as `addnorm train --resume runs/my`: this command begins anew"
                )
            raise InputError(
                f"{word!r} is neither an option nor a field such as --train.lr."
                f"{_nearest(name, options)}"
            )
        if not equals:
            value = next(rest, None)
        if value is None:
            raise InputError(f"--{name} needs a value")
        if name in fields:
            raise InputError(f"--{name} is given twice: {fields[name]} and {value}")
        fields[name] = value
    return fields


def _nearest(name: str, options: Iterable[str]) -> str:
    """A hint at the nearest option, or at the field with the nearest last word."""
    from addnorm.runs.settings import EvalConfig
    from addnorm.train.settings import TrainConfig

    table, _, field = name.rpartition(".")
    known = {
        f"{one}.{entry.name}": entry.name
        for one, config in (("train", TrainConfig), ("eval", EvalConfig))
        for entry in dataclass_fields(config)
    } | {f"model.{entry}": entry for entry in ("d_model", "n_layers", "dropout", "max_len")}
    exact = [full for full, last in known.items() if last == (field or name)]
    if exact and not table:
        return f" Did you mean '--{exact[0]}'?"
    return nearest(f"--{name}", [*options, *(f"--{full}" for full in known)])
