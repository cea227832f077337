"""Packages whose names are imported on first use, as listed in their `__init__.pyi`."""

import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


@cache
def modules_of(package: str) -> dict[str, str]:
    """The module of each name of a package: `__init__.pyi` is the list, read by checkers too."""
    import re

    file = sys.modules[package].__file__
    assert file is not None
    with open(f"{file.removesuffix('.py')}.pyi", encoding="utf-8") as stub:
        imports = re.findall(r"^from (\S+) import \W*(\w+)", stub.read(), re.MULTILINE)
    return {name: module for module, name in imports}


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` for a package."""

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
        return sorted(get("__all__"))

    return get, directory
