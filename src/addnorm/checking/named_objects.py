"""Objects that a user names by module and name."""

import sys
from pathlib import Path
from typing import Any

from addnorm.errors import InputError, nearest
from addnorm.runs.recipes.custom_parts import import_parts


def named_object(name: str, option: str) -> Any:
    """Import the object `module:name`, which the user named explicitly.

    Raises `InputError` if it does not exist.
    """
    module, colon, path = name.partition(":")
    if not colon or not path:
        raise InputError(
            f"`{option} = {name}`: give the module and the name, such as my_parts:MyConfig"
        )
    if module not in sys.modules:
        import_parts([f"{module}.py" if Path(f"{module}.py").is_file() else module])
    found: Any = sys.modules[module]
    for one in path.split("."):
        if not hasattr(found, one):
            hint = nearest(one, [n for n in vars(found) if not n.startswith("_")])
            raise InputError(f"`{option} = {name}`: {module} has no {path}.{hint}")
        found = getattr(found, one)
    return found
