"""Packages whose names are imported on first use, as listed in their `__init__.pyi`."""

import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

_IMPORT = re.compile(r"^from (\S+) import \W*(\w+)", re.MULTILINE)


@cache
def modules_of(package: str) -> dict[str, str]:
    """The module of each name of a package: `__init__.pyi` is the list, read by checkers too."""
    file = sys.modules[package].__file__
    assert file is not None
    stub = Path(file).with_suffix(".pyi").read_text("utf-8")
    return {name: module for module, name in _IMPORT.findall(stub)}


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package."""

    def get(name: str) -> Any:
        """Import names lazily, on first use. Raises `AttributeError` with the nearest name."""
        modules = modules_of(package)
        names = vars(sys.modules[package])
        if name == "__all__":
            return [*(["__version__"] if "__version__" in names else []), *modules]
        if name in modules:
            module = import_module(modules[name])
            if not hasattr(module, name):
                import_module(f"{module.__name__}.{name}")
            value = names[name] = getattr(module, name)
            return value
        from addnorm.errors import nearest

        hint = "" if name.startswith("_") else nearest(name, modules)
        raise AttributeError(f"module {package!r} has no attribute {name!r}.{hint}", name=name)

    def directory() -> list[str]:
        return sorted({*vars(sys.modules[package]), *get("__all__")})

    return get, directory
