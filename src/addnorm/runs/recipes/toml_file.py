"""The file of a recipe as a tree; it is read without torch, so a mistake in TOML shows at once."""

import re
import tomllib
from pathlib import Path
from typing import Any

from addnorm.errors import InputError
from addnorm.files import check_recipe_file, read_file


def read_toml(file: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a recipe and its tree. Raises `InputError` with the line of a mistake."""
    text = _read(file)
    return text, _parse(file, text)


def _read(file: Path) -> str:
    check_recipe_file(file)
    try:
        return read_file(file).decode("utf-8-sig")
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
        match = re.match(r"line (\d+)", where)
        line = int(match[1]) if match else text.rstrip().count("\n") + 1
        hint = "" if file.suffix == ".toml" else DATA
        raise InputError(f"{file}:{line}: not valid TOML: {TOML.get(what, what)}{hint}") from error
    except RecursionError as error:
        raise InputError(f"{file}: not a recipe: nested too deep") from error


DATA = ". A recipe is a TOML file; a text to learn from is named in it, as data.train"
"""What a file with another name probably is."""

TOML = {
    "Cannot overwrite a value": "this is given twice",
    "Invalid value": "not a value: write text in quotes",
    "Illegal character '\\n'": "a line ends within quotes",
}
"""Messages of Python's TOML reader, in other words."""
