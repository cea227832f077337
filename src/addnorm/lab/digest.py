"""The digest of everything that a cell's result depends on, which identifies finished cells."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from pydantic import TypeAdapter

from addnorm.convert.core.modules import places_of
from addnorm.data import DataConfig
from addnorm.data.readers.labelled_files import LabelledFiles
from addnorm.data.readers.text_files import ROOT, given
from addnorm.machine import processor
from addnorm.nn.choices import CHOICES, KernelChoices
from addnorm.runs.files.digests import digest
from addnorm.runs.files.folder import BASE, OF_TRAINING


def cell_digest(
    recipe: Mapping[str, Any], threads: int, kernels: KernelChoices, imports: Sequence[str] = ()
) -> str:
    """Return 16 hexadecimal digits for recipe, seed, data, code, threads, kernels and processor."""
    facts = {
        "recipe": recipe,
        "data": {str(file): digest_of_file(file) for file in files_in(recipe.get("data") or {})},
        "start": _start(recipe),
        "code": code_digest(),
        "imports": {name: digests_of_module(name) for name in imports},
        "torch": torch.__version__,
        "numpy": np.__version__,
        "threads": threads,
        "kernels": CHOICES.dump_python(kernels, mode="json"),
        "processor": processor(),
    }
    text = json.dumps(facts, sort_keys=True, ensure_ascii=False)
    return xxhash.xxh3_64(text.encode()).hexdigest()


def digest_of_file(file: Path) -> str:
    """The digest of a file, recomputed only if its size or time has changed."""
    facts = file.stat()
    return _digest(file, facts.st_size, facts.st_mtime_ns)


@cache
def _digest(file: Path, size: int, time: int) -> str:
    del size, time
    return digest(file)


def files_in(data: Mapping[str, Any]) -> Iterator[Path]:
    """The files named in a recipe's data, at the paths where training finds them, in order."""
    root = Path(data.get("root") or os.environ.get(ROOT, ""))
    for key, value in data.items():
        if key not in ("kind", "root"):
            yield from _named(value, root, folders=key == FOLDERS)
    if data.get("kind") in ("audio", "image_files"):
        yield from _media_files(data)


def _media_files(data: Mapping[str, Any]) -> Iterator[Path]:
    """Yield the sounds or images of folders, patterns and tables, and their text files."""
    config: LabelledFiles = TypeAdapter[Any](DataConfig).validate_python(dict(data))
    for pattern in given(config.train, config.valid, config.test).values():
        for _, file, _ in config.files(pattern):
            if isinstance(file, Path):
                yield file
                if config.labels == "text_beside":
                    yield file.with_suffix(".txt")


FOLDERS = "path"
"""The field of data that may name the folder of a saved dataset."""


def _named(value: Any, root: Path, *, folders: bool) -> Iterator[Path]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for name in value:
            yield from _named(name, root, folders=folders)
    elif isinstance(value, str) and value and "\n" not in value and len(value) < MOST_LETTERS:
        path = root / value
        if path.is_file():
            yield path
        elif folders and path.is_dir():
            yield from sorted(file for file in path.rglob("*") if file.is_file())


MOST_LETTERS = 4096
"""The length of the longest path."""


def _start(recipe: Mapping[str, Any]) -> dict[str, str]:
    """The digests of the models that training starts or learns from, and of their bases.

    Their names and configuration count as well as their weights: rows are copied by name.
    """
    train = recipe.get("train", {})
    folders = (train.get("start"), (train.get("distillation") or {}).get("teacher"))
    named = [Path(folder) for folder in folders if isinstance(folder, str)]
    return {str(file): digest_of_file(file) for file in dict.fromkeys(_files_of(named))}


def _files_of(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that affect a model folder's outputs, and those of adapters' bases."""
    for folder in folders:
        for place in places_of(folder):
            files = (file for file in place.rglob("*") if file.is_file())
            yield from (file for file in sorted(files) if not _is_of_training(file, place))


def _is_of_training(file: Path, folder: Path) -> bool:
    """Return whether a file in a model folder only records its training."""
    path = file.relative_to(folder)
    return any(path.match(pattern) for pattern in OF_TRAINING if pattern != BASE)


def digests_of_module(name: str) -> list[str]:
    """The digests of a custom part's file or module, and of the files that it imports."""
    path = Path(name)
    if not path.is_file():
        spec = find_spec(name)
        path = Path(spec.origin) if spec and spec.origin else path
    return [digest_of_file(file) for file in sources_of(path)]


def sources_of(path: Path) -> list[Path]:
    """Return a module's files: its whole package, or itself and the nearby files it imports."""
    if path.name == "__init__.py":
        return sorted(path.parent.rglob("*.py"))
    if not path.is_file() or {"site-packages", "dist-packages"} & {*path.parts}:
        return [path] if path.is_file() else []
    finder = ModuleFinder([str(path.resolve().parent)])
    try:
        finder.run_script(str(path))
    except SyntaxError:
        return [path]
    files = (getattr(module, "__file__", None) for module in finder.modules.values())
    return sorted({Path(file) for file in files if file})


@cache
def code_digest() -> str:
    """The version of AddNorm, and a digest of the modules that affect results."""
    here = Path(__file__).parent
    total = xxhash.xxh3_64()
    for file in sorted(here.parent.rglob("*.py")):
        part = file.relative_to(here.parent).parts[0]
        if part not in ("bench", "cli", "demo", "lab") or file == here / "studies" / "cell.py":
            total.update(file.read_bytes())
    return f"{version('addnorm')} {total.hexdigest()}"
