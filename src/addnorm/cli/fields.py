"""Recipe fields on the command line: `--train.lr 3e-4` or `--train.lr=3e-4`."""

from collections.abc import Iterable

from addnorm.errors import InputError, nearest

TABLES = ("data", "tokenizer", "model", "train", "eval")
PARTS = ("data", "tokenizer")
"""Tables that are a part as a whole, so that a word may stand for them: `--tokenizer char`."""


def fields_given(words: Iterable[str], options: Iterable[str]) -> dict[str, str]:
    """The values by field name; `options` are those that the command has besides.

    Raises `InputError` for anything that is not a field and a value.
    """
    fields: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.removeprefix("--").partition("=")
        table, _, field = name.partition(".")
        whole = name in PARTS
        if not (word.startswith("--") and (whole or (field and table in TABLES))):
            known = [*options, *(f"--{table}.{field}" for table in TABLES)]
            raise InputError(
                f"{word!r} is neither an option nor a field such as --train.lr."
                f"{nearest(word.split('=')[0], known)}"
            )
        if not equals:
            value = next(rest, None)
        if value is None:
            raise InputError(f"--{name} needs a value")
        fields[name] = value
    return fields
