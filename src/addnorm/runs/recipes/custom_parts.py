"""Imports of the modules that define the custom parts of a recipe or run.

Reading a file never imports anything by itself. The modules it needs must already be imported, or
be named explicitly by the user.
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from addnorm.errors import InputError, nearest
from addnorm.files import read_file


def imports_of(settings: Any) -> dict[str, str]:
    """The modules of all custom parts in a configuration, as `--import` takes them.

    Files below the current folder are named relative to it.
    """
    return {module: _as_named(module) for module in sorted({*_modules(settings)})}


def _modules(settings: Any) -> Iterator[str]:
    if isinstance(settings, tuple | list):
        for item in settings:
            yield from _modules(item)
        return
    if is_dataclass(settings):
        inner = [getattr(settings, field.name) for field in fields(settings)]
    elif names := getattr(type(settings), "model_fields", None):
        inner = [getattr(settings, name) for name in names]
    else:
        return
    module = type(settings).__module__
    if module.partition(".")[0] != "addnorm":
        yield module
    for value in inner:
        yield from _modules(value)


def _as_named(module: str) -> str:
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or Path(file).stem != module:
        return module
    path = Path(file).resolve()
    if {"site-packages", "dist-packages"} & {*path.parts}:
        return module
    near = path.is_relative_to(Path.cwd())
    return os.path.relpath(path) if near else str(path)


def check_imports(where: Path, tree: Any, recorded: Any = None) -> None:
    """Raise `InputError` naming all modules that `tree` needs but that are not imported.

    `recorded` is the result of `imports_of` when the file was written.
    """
    named = {
        module: name
        for module, name in (recorded.items() if isinstance(recorded, dict) else ())
        if isinstance(name, str)
    }
    try:
        needed = sorted({*needed_imports(tree), *named})
    except RecursionError as error:
        raise InputError(f"{where}: nested too deep") from error
    missing = [module for module in needed if module not in sys.modules]
    if not missing:
        return
    options = " ".join(f"--import {named.get(module, f'{module}.py')}" for module in missing)
    raise InputError(
        f"{where}: has parts of {' and '.join(missing)}, and a file that is only read imports "
        f"nothing: `import {', '.join(missing)}` before, or on the command line add `{options}`"
    )


def import_named(file: Path, names: Any, where: str) -> None:
    """Import the modules that a user's own recipe lists in `import`, relative to the recipe.

    Raises `InputError`, prefixed by `where`, if an import fails, or if the recipe is inside a model
    folder, which may come from an untrusted source.
    """
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(
            f"{where}: import is a list of files and modules: import = ['my_parts.py']"
        )
    if names and (folder := _model_folder(file)) is not None:
        options = " ".join(f"--import {name}" for name in names)
        raise InputError(
            f"{where}: a recipe in the folder of a model ({folder}) imports nothing: "
            f"look at what it names, then import it yourself: `addnorm … {options}`"
        )
    try:
        import_parts(names, file.parent)
    except InputError as error:
        raise InputError(f"{where}: import: {str(error).removeprefix('`imports` ')}") from error


def _model_folder(file: Path) -> Path | None:
    """The run, checkpoint or Hugging Face folder that contains a recipe, if any."""
    for folder in file.resolve().parents[:3]:
        try:
            facts = json.loads(read_file(folder / "config.json"))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(facts, Mapping) and facts.keys() & {"recipe", "model_type", "architectures"}:
            return folder
    return None


def import_parts(names: Sequence[str], folder: Path | None = None) -> None:
    """Import the files (`my_parts.py`, relative to `folder`) and modules that the user named.

    A file becomes the module of its stem. Raises `InputError` for one that is missing, or that
    would take the place of a module that is imported already; an error in its
    own code keeps its traceback.
    """
    for name in names:
        if name.endswith(".py"):
            _import_file((folder or Path()) / name)
            continue
        try:
            import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            raise InputError(f"`imports` {name}: no such module, and no file {name}.py") from error


def needed_imports(tree: Any) -> list[str]:
    """The modules of all `module:Class` kinds in a recipe's tree."""
    modules: list[str] = []
    if isinstance(tree, Mapping):
        kind = tree.get("kind")
        if isinstance(kind, str) and ":" in kind:
            modules.append(kind.partition(":")[0])
        modules += [name for value in tree.values() for name in needed_imports(value)]
    elif isinstance(tree, list | tuple):
        modules += [name for value in tree for name in needed_imports(value)]
    return sorted(set(modules))


def _import_file(file: Path) -> ModuleType:
    name, path = file.stem, file.resolve()
    if not path.is_file():
        near = nearest(file.name, [path.name for path in file.parent.glob("*.py")])
        raise InputError(f"`imports` {file}: no such file.{near}")
    if (there := sys.modules.get(name)) is not None:
        if Path(getattr(there, "__file__", None) or "").resolve() == path:
            return there
        raise InputError(
            f"`imports` {file}: a module {name!r} is imported already: rename the file"
        )
    if not name.isidentifier():
        raise InputError(f"`imports` {file}: {name!r} is not the name of a module: rename the file")
    if (other := find_spec(name)) is not None and other.origin != str(path):
        raise InputError(
            f"`imports` {file}: {name!r} is the name of another module, {other.origin}: "
            "rename the file"
        )
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise InputError(f"`imports` {file}: not a Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def named_object(name: str, option: str) -> Any:
    """Import the object `module:name`, which a user named.

    Raises `InputError` if it does not exist.
    """
    module, colon, path = name.partition(":")
    if not colon or not path:
        raise InputError(
            f"`{option} = {name}`: give the module and the name, such as my_parts:MyConfig"
        )
    if module not in sys.modules:
        import_parts([f"{module}.py" if Path(f"{module}.py").is_file() else module])
    value: Any = sys.modules[module]
    for attribute in path.split("."):
        if not hasattr(value, attribute):
            hint = nearest(attribute, [n for n in vars(value) if not n.startswith("_")])
            raise InputError(f"`{option} = {name}`: {module} has no {path}.{hint}")
        value = getattr(value, attribute)
    return value
