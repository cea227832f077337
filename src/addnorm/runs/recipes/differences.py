"""The fields in which two recipes differ."""

from typing import Any

from addnorm.runs.recipes.recipe import RECIPE, Recipe


def differences(old: Recipe, new: Recipe) -> dict[str, tuple[Any, Any]]:
    """The old and new value of each field, such as `train.lr`, in which two recipes differ."""
    before, after = (_fields(RECIPE.dump_python(r, mode="json")) for r in (old, new))
    names = [*before, *(name for name in after if name not in before)]
    both = {name: (before.get(name), after.get(name)) for name in names}
    return {name: (one, other) for name, (one, other) in both.items() if one != other}


def _fields(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": inner for name, inner in _fields(value).items()}
        else:
            found[key] = value
    return found
