"""Files and folders: reading up to a size limit, missing models, encodings, caches."""

import json
import os
import re
import stat
import tomllib
from encodings.aliases import aliases
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from addnorm.errors import InputError, closest, nearest, some_of

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

SETTINGS = 2**26
"""The size limit of recipes, configurations and tokenizers: 64 MiB."""


def check_regular(file: Path) -> None:
    """Raise `InputError` for a pipe, a device or a link to one, which may be endless."""
    mode = file.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise InputError(f"{file}: not a file but a pipe or a device")


def read_file(file: Path, most: int = SETTINGS) -> bytes:
    """Read a file.

    Raises `InputError` if it is not a regular file or has more than `most` bytes, and `OSError` if
    it cannot be read.
    """
    check_regular(file)
    with file.open("rb") as stream:
        long = os.fstat(stream.fileno()).st_size > most
        data = b"" if long else stream.read(most + 1)
    if long or len(data) > most:
        raise InputError(f"{file}: too large: a file of this kind has at most {most:,} bytes")
    return data


@overload
def read_json(file: Path, *, most: int = SETTINGS) -> Any: ...
@overload
def read_json(file: Path, adapter: "TypeAdapter[T]", *, most: int = SETTINGS) -> T: ...
def read_json(
    file: Path, adapter: "TypeAdapter[Any] | None" = None, *, most: int = SETTINGS
) -> Any:
    """Read a JSON file; with an `adapter`, as a value of its type.

    Raises `InputError` if it is missing, too large, not JSON, or JSON of another type.
    """
    try:
        text = read_file(file, most)
    except FileNotFoundError as error:
        raise InputError(f"{file}: missing: the folder is damaged") from error
    try:
        return json.loads(text) if adapter is None else adapter.validate_json(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: damaged: {_problem(error)}") from error


def _problem(error: Exception) -> str:
    from pydantic import ValidationError

    from addnorm.config import first_problem

    return first_problem(error) if isinstance(error, ValidationError) else str(error)


def read_names(file: Path) -> tuple[str, ...]:
    """Read a JSON list of at least one name. Raises `InputError` for anything else."""
    names = read_json(file)
    if not (isinstance(names, list) and names and all(isinstance(name, str) for name in names)):
        raise InputError(f"{file}: damaged: not a list of names")
    return tuple(names)


MODEL_FILES = ("config.json", "adapter_config.json", "modules.json")
"""The folder of a model has one of these: a run, a Hugging Face folder, an adapter."""
ON_THE_HUB = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")


def check_model_folder(folder: Path) -> None:
    """Raise `InputError` if a path cannot hold a model, without opening files.

    The message has the nearest folder of a model; for a name of the Hugging Face Hub, how its model
    is downloaded, since nothing here does so.
    """
    if any((folder / name).exists() for name in MODEL_FILES) or (folder / ".lock").exists():
        return
    if folder.suffix == ".gguf" and folder.is_file():
        return
    near = nearest(folder.name, _models_in(folder.parent)) or _near_in_runs(folder)
    if folder.is_dir():
        inside = sorted(map(str, _models_in(folder).values()))
        near += f" In it: {some_of(inside)}." if inside else ""
        raise InputError(f"{folder}: not a run folder: no config.json.{near}")
    if folder.exists():
        raise InputError(f"{folder}: a file, not a run folder.{near}")
    raise InputError(f"{folder}: no such folder.{near}{download_hint(str(folder))}")


def _models_in(folder: Path) -> dict[str, Path]:
    """The folders of models that lie in a folder, by name."""
    models = (file.parent for name in MODEL_FILES for file in folder.glob(f"*/{name}"))
    return {model.name: model for model in sorted(models)}


def _near_in_runs(folder: Path) -> str:
    """The hint `Did you mean ...?` with a run of nearly this name where training leaves them."""
    runs = _models_in(Path("runs"))
    name = closest(folder.name, runs)
    return "" if name is None else f" Did you mean '{runs[name]}'?"


def download_hint(name: str) -> str:
    """How to download a model with this name from the Hugging Face Hub; empty for other names."""
    folder = Path(name)
    here = folder.parent != Path() and folder.parent.is_dir()
    if here or not ON_THE_HUB.fullmatch(name):
        return ""
    return (
        f" Nothing is downloaded: for a model of the Hugging Face Hub, run "
        f"`hf download {name} --local-dir {folder.name}` and give the folder {folder.name}."
    )


def check_recipe_file(file: Path) -> None:
    """Raise `InputError`, naming the nearest file, if a recipe does not exist."""
    if not (file.exists() or file.is_symlink()):
        names = [path.name for path in file.parent.glob("*.toml")]
        raise InputError(f"{file}: no such recipe.{nearest(file.name, names)}")


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
        hint = _typed(text.split("\n")[line - 1])
        hint += "" if file.suffix == ".toml" else NOT_TOML
        raise InputError(
            f"{file}:{line}: not valid TOML: {TOML_ERRORS.get(what, what)}{hint}"
        ) from error
    except RecursionError as error:
        raise InputError(f"{file}: not a recipe: nested too deep") from error


def _typed(line: str) -> str:
    """Name a sign of a word processor or a Chinese keyboard that stands where TOML has another."""
    bare = re.sub(r"""(["']).*?\1|#.*""", "", line)
    sign = next((char for char in bare if char in TYPED), None)
    shown = "a wide space" if sign == "\u3000" else sign
    return "" if sign is None else f"; {shown} stands where TOML has {TYPED[sign]}"


TYPED = {
    **dict.fromkeys("“”„＂", '"'),
    **dict.fromkeys("‘’＇", "'"),
    **dict(zip("＝，．［］｛｝＃", "=,.[]{}#", strict=True)),
    **dict(zip("、【】", ",[]", strict=True)),
    "\u3000": "a space",
}
"""Signs that look like those of TOML, and these."""

NOT_TOML = ". A recipe is a TOML file; a text to learn from is named in it, as data.train"
"""What a file with another name probably is."""

TOML_ERRORS = {
    "Cannot overwrite a value": "this is given twice",
    "Invalid value": "not a value: write text in quotes",
    "Illegal character '\\n'": "a line ends within quotes",
}
"""Messages of Python's TOML reader, in other words."""


def nearest_encoding(name: str) -> str:
    """The hint `Did you mean ...?` with the nearest encoding name, or an empty string."""
    encodings = {*aliases.values(), *aliases, "utf-8", "latin-1"}
    return nearest(name.lower(), sorted(encodings))


def cache_folder() -> Path:
    """The folder for recomputable files: compiled graphs, token arrays, tokenizers.

    `$ADDNORM_CACHE`, or `addnorm` in the user's folder of caches.
    """
    if chosen := os.environ.get("ADDNORM_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "addnorm"
