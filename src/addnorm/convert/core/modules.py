"""sentence-transformers' `modules.json`: the modules that a folder has, and their places."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from addnorm.convert.core.settings import Settings
from addnorm.convert.tokenizers.layouts import GENERATION
from addnorm.convert.weights.mapped import parse_object
from addnorm.convert.weights.peft import base_of, is_adapter
from addnorm.errors import InputError
from addnorm.files import read_file

FILE = "modules.json"
MAX_BYTES = 2**20
"""The maximum size of a list of modules."""


class Module(NamedTuple):
    """A module: the last part of its class's name, that name, and the folder of its files."""

    kind: str
    type: str
    path: Path


def modules_of(folder: Path) -> list[Module]:
    """The modules of a folder in order; empty if it has no `modules.json`.

    Raises `InputError` where that is damaged, or a path leaves the folder.
    """
    file = folder / FILE
    if not file.is_file():
        return []
    tree: Any = parse_object(b'{"modules": ' + read_file(file, MAX_BYTES) + b"}", file)["modules"]
    if not isinstance(tree, list) or not all(isinstance(listed, dict) for listed in tree):
        raise InputError(f"{file}: not a list of modules")
    return [_module(folder, listed) for listed in tree]


def _module(folder: Path, listed: Mapping[str, Any]) -> Module:
    name = str(listed.get("type", ""))
    path = (folder / str(listed.get("path", ""))).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{folder / FILE}: the path {listed.get('path')!r} is outside the folder")
    return Module(name.rpartition(".")[2], name, path)


def transformer_folder(folder: Path) -> Path:
    """The folder of the model and its tokenizer: this one, or its `Transformer` module.

    Older versions of sentence-transformers have it in `0_Transformer`.
    """
    if _names_a_model(folder):
        return folder
    first = [module.path for module in modules_of(folder)[:1] if module.kind == "Transformer"]
    return first[0] if first and _names_a_model(first[0]) else folder


def inner_places(folder: Path) -> tuple[Path, ...]:
    """The folder, and that of its `Transformer` module if they differ."""
    inner = transformer_folder(folder)
    return (folder,) if inner == folder else (folder, inner)


def places_of(folder: Path) -> tuple[Path, ...]:
    """The folders to search for files other than weights, the nearest first.

    An adapter's files, then those of its base, and of the base's own base. The last has the
    weights. Raises `InputError` where a base is missing or leads back to the adapter.
    """
    seen = [folder]
    places = [*inner_places(folder)]
    while is_adapter(seen[-1]):
        base = base_of(seen[-1])
        if any(base.samefile(other) for other in seen):
            raise InputError(f"{folder}: the base of this adapter leads back to it: {base}")
        seen.append(base)
        places += inner_places(base)
    return tuple(places)


def find_file(places: Sequence[Path], *names: str) -> Path | None:
    """The first file with one of these names, searching the nearest place first."""
    files = (place / name for place in places for name in names)
    return next((file for file in files if file.is_file()), None)


def generating_place(places: Sequence[Path]) -> Path:
    """The folder that decides how a model generates: with the generation file, or the weights."""
    file = find_file(places, GENERATION)
    return places[-1] if file is None else file.parent


def is_run_folder(folder: Path) -> bool:
    """Whether this folder holds a run, whose `config.json` contains its recipe."""
    return _has(folder, "recipe")


def _names_a_model(folder: Path) -> bool:
    return _has(folder, "model_type")


def _has(folder: Path, key: str) -> bool:
    try:
        return key in Settings.of(folder).tree
    except InputError:
        return False
