"""All checkpoint families by `model_type`: built-in and external ones.

A family from outside is registered by a call in a module that a person imports, or named by an
installed package under the entry-point group `addnorm.families`. Reading a folder never imports
anything: the module of an entry point must be imported already, as that of a part.
"""

import sys
from collections import ChainMap
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from addnorm.convert.core.family import Family
from addnorm.convert.core.settings import Settings
from addnorm.convert.families import FAMILIES, families_under
from addnorm.errors import InputError, choices

ENTRY_POINTS = "addnorm.families"
"""The entry-point group of installed packages: `my_type = "my_package:MY_FAMILY"`."""

REGISTERED: dict[str, Family] = {}
"""The families that `register_family` was called for."""


def register_family(family: Any) -> None:
    """Let every command and function open folders with the `model_type` of a `Family`.

    Raises `InputError` for another object, and if another family has this `model_type`.
    """
    if not isinstance(family, Family):
        raise InputError(f"register_family takes a Family, not {type(family).__name__}")
    name = family.model_type
    if name in FAMILIES:
        raise InputError(f"model_type = {name!r} is a built-in family: it cannot be replaced")
    if REGISTERED.setdefault(name, family) is not family:
        raise InputError(f"model_type = {name!r} is registered already, by another family")


def families() -> Mapping[str, Family]:
    """All families by `model_type`, the built-in ones first; each of these is imported when used.

    Of installed packages, those whose modules are imported.
    """
    outside = {**REGISTERED, **dict(_imported_entry_points())}
    others = {name: family for name, family in outside.items() if name not in FAMILIES}
    return ChainMap(others, FAMILIES)  # pyright: ignore[reportArgumentType]


def family_of(settings: Settings) -> Family:
    """The family for a `config.json`. Raises `InputError` if it is not supported."""
    model_type = settings.get("model_type", "")
    for family in families_under(model_type):
        if all(settings.tree.get(key) == value for key, value in family.published_as.items()):
            return family
    return family_named(model_type, settings.where)


def family_named(model_type: str, where: str) -> Family:
    """The family with this `model_type`. Raises `InputError` if it is not supported."""
    by_name = families()
    if model_type in by_name:
        return by_name[model_type]
    refused = f"{where}: model_type = {model_type!r} is not supported"
    if (entry := installed_families().get(model_type)) is not None:
        raise InputError(
            f"{refused} until the package that has it is imported: a file that is only read "
            f"imports nothing. On the command line, `addnorm … --import {entry.module}`"
        )
    raise InputError(f"{refused}.{choices(model_type, by_name)}")


@cache
def installed_families() -> Mapping[str, EntryPoint]:
    """The families named by installed packages, without importing them."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}


def _imported_entry_points() -> Iterator[tuple[str, Family]]:
    """Yield the families of installed packages whose modules are already imported."""
    for name, entry in installed_families().items():
        if entry.module in sys.modules:
            yield name, _loaded(entry)


def _loaded(entry: EntryPoint) -> Family:
    family = entry.load()
    if not isinstance(family, Family) or family.model_type != entry.name:
        raise InputError(
            f"the entry point {entry.name} = {entry.value!r} of {ENTRY_POINTS} is not a Family "
            f"whose model_type is {entry.name!r}"
        )
    return family
