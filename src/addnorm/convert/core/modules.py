"""The `modules.json` of sentence-transformers: which modules a folder has, and where each is."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from addnorm.convert.core.settings import Settings
from addnorm.convert.weights.header import parse_object
from addnorm.errors import InputError
from addnorm.files import read_file

FILE = "modules.json"
MAX_BYTES = 2**20
"""No list of modules is longer."""


class Module(NamedTuple):
    """A module: the last part of its class, that class, and the folder of its files."""

    kind: str
    type: str
    path: Path


def modules_of(folder: Path) -> list[Module]:
    """The modules of a folder in their order; none where it has no `modules.json`.

    Raises `InputError` where that is damaged, or a path leaves the folder.
    """
    file = folder / FILE
    if not file.is_file():
        return []
    tree: Any = parse_object(b'{"modules": ' + read_file(file, MAX_BYTES) + b"}", file)["modules"]
    if not isinstance(tree, list) or not all(isinstance(one, dict) for one in tree):
        raise InputError(f"{file}: not a list of modules")
    return [_module(folder, one) for one in tree]


def _module(folder: Path, listed: Mapping[str, Any]) -> Module:
    name = str(listed.get("type", ""))
    path = (folder / str(listed.get("path", ""))).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise InputError(f"{folder / FILE}: the path {listed.get('path')!r} is outside the folder")
    return Module(name.rpartition(".")[2], name, path)


def transformer_folder(folder: Path) -> Path:
    """Where the model and its tokenizer are: the folder itself, or its module `Transformer`.

    sentence-transformers has had it in `0_Transformer`.
    """
    if _names_a_model(folder):
        return folder
    named = [module.path for module in modules_of(folder)[:1] if module.kind == "Transformer"]
    return named[0] if named and _names_a_model(named[0]) else folder


def _names_a_model(folder: Path) -> bool:
    try:
        return "model_type" in Settings.of(folder).tree
    except InputError:
        return False
