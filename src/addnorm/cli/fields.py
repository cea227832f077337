"""Recipe fields on the command line: `--train.lr 3e-4` or `--train.lr=3e-4`."""

from collections.abc import Iterable

from addnorm.errors import InputError, nearest

TABLES = ("data", "tokenizer", "model", "train", "eval")


def fields_given(words: Iterable[str]) -> dict[str, str]:
    """The values by field name. Raises `InputError` for anything that is not a field and a value."""
    fields: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.removeprefix("--").partition("=")
        table = name.split(".")[0]
        if not word.startswith("--") or "." not in name or table not in TABLES:
            options = [*(f"--{t}" for t in TABLES), "--out", "--resume", "--dry-run"]
            raise InputError(
                f"{word!r} is neither an option nor a field such as --train.lr."
                f"{nearest(word, options)}"
            )
        if not equals and (value := next(rest, None)) is None:
            raise InputError(f"--{name} needs a value")
        fields[name] = value
    return fields
