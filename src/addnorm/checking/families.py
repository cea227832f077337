"""Determining the family of a custom part, and finding its class by name."""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from addnorm.checking.axes import PARTS
from addnorm.checking.other_families import OTHER_FAMILIES
from addnorm.errors import InputError, choices
from addnorm.nn.masks import Mask
from addnorm.nn.positions import Position
from addnorm.parts import Family, examples, family_of, kind_of

D_MODEL = 8


def families() -> dict[str, Family]:
    """All families of parts, by name."""
    ours = {name: family_of(axis.union) for name, axis in PARTS.items()}
    found = {name: family for name, family in ours.items() if family is not None}
    return {**found, **OTHER_FAMILIES}


def part_examples(part: type) -> Mapping[str, Any]:
    """The examples of a part. Raises `InputError` if it has none and needs arguments."""
    try:
        return examples(part)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{kind_of(part)} cannot be made without values: give it a classmethod examples() "
            f"that returns some by name ({error})"
        ) from error


def family_name(part: Any, wanted: str | None = None) -> str:
    """The family of a part. Raises `InputError` if it fits none or several."""
    known = families()
    if wanted is not None:
        if wanted not in known:
            raise InputError(
                f"`family = {wanted}`: there is no such family.{choices(wanted, known)}"
            )
        _check(known[wanted], part)
        return wanted
    fitting = fitting_families(part)
    if len(fitting) != 1:
        which = f"may be any of {', '.join(fitting)}" if fitting else "fits no family"
        raise InputError(
            f"{kind_of(part)} {which}: say with `family` which it is. There are {', '.join(known)}."
        )
    return fitting[0]


def fitting_families(part: Any) -> list[str]:
    """The families that a part may belong to: usually one; none for other objects."""
    known = families()
    fitting = [name for name, family in known.items() if _fits(family, part)]
    most = max((_alike(known[name], part) for name in fitting), default=0)
    fitting = [name for name in fitting if _alike(known[name], part) == most]
    if len(fitting) < 2:
        return fitting
    try:
        return _by_what_it_builds(fitting, part)
    except (ValueError, RuntimeError):  # it cannot be built without arguments
        return fitting


def _check(family: Family, part: Any) -> None:
    try:
        family.check(part)
    except ValueError as error:
        raise InputError(str(error)) from error


def _fits(family: Family, part: Any) -> bool:
    try:
        family.check(part)
    except ValueError:
        return False
    return True


def _alike(family: Family, part: Any) -> int:
    """A score: the number of arguments named as in the protocol, plus one if the count matches."""
    wanted, given = (
        [*inspect.signature(getattr(owner, family.method)).parameters]
        for owner in (family.protocol, part)
    )
    return sum(a == b for a, b in zip(wanted, given, strict=False)) + (len(wanted) == len(given))


def _by_what_it_builds(names: list[str], part: Any) -> list[str]:
    """Decide by what is built: norms take `(x, valid)`, feed-forward layers `x`."""
    config = next(iter(part_examples(part).values()))
    if {"norm", "feedforward"} <= {*names}:
        module = _built_of_a_width(config)
        if module is None or isinstance(module, Position):
            return [name for name in names if name not in ("norm", "feedforward")]
        n_arguments = len(inspect.signature(module.forward).parameters)
        return ["norm" if n_arguments > 1 else "feedforward"]
    if {*names} == {"pattern", "loss"}:
        return ["pattern" if isinstance(config.build(), Mask) else "loss"]
    return names


def _built_of_a_width(config: Any) -> nn.Module | None:
    """The module built from `d_model` alone; None if `build` takes other arguments."""
    try:
        module = config.build(D_MODEL)
    except (AttributeError, TypeError):
        return None
    return module if isinstance(module, nn.Module) else None
