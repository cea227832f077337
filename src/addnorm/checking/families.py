"""Finding a custom part by name, and the family of parts to which it belongs."""

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
    """Return all families of parts, by name."""
    ours = {name: family_of(axis.union) for name, axis in PARTS.items()}
    of_models = {name: family for name, family in ours.items() if family is not None}
    return {**of_models, **OTHER_FAMILIES}


def part_examples(part: type) -> Mapping[str, Any]:
    """Return the examples of a part. Raises `InputError` if it has none and needs arguments."""
    try:
        return examples(part)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{kind_of(part)} cannot be built without arguments: give it a classmethod examples() "
            f"that returns some by name ({error})"
        ) from error


def family_name(part: Any, wanted: str | None = None) -> str:
    """Return the family of a part. Raises `InputError` if it fits none or several."""
    by_name = families()
    if wanted is not None:
        if wanted not in by_name:
            raise InputError(
                f"`family = {wanted}`: there is no such family.{choices(wanted, by_name)}"
            )
        _check(by_name[wanted], part)
        return wanted
    fitting = fitting_families(part)
    if len(fitting) != 1:
        which = f"may be any of {', '.join(fitting)}" if fitting else "fits no family"
        names = ", ".join(by_name)
        raise InputError(
            f"{kind_of(part)} {which}: name its family with `family`. There are {names}."
        )
    return fitting[0]


def fitting_families(part: Any) -> list[str]:
    """Return the families to which a part may belong, usually one; none for other objects."""
    by_name = families()
    fitting = [name for name, family in by_name.items() if _fits(family, part)]
    most = max((_alike(by_name[name], part) for name in fitting), default=0)
    fitting = [name for name in fitting if _alike(by_name[name], part) == most]
    if len(fitting) < 2:
        return fitting
    try:
        return _by_built_module(fitting, part)
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
    """Return the number of arguments named as in the protocol, plus one if the count agrees."""
    wanted, given = (
        [*inspect.signature(getattr(owner, family.method)).parameters]
        for owner in (family.protocol, part)
    )
    return sum(a == b for a, b in zip(wanted, given, strict=False)) + (len(wanted) == len(given))


def _by_built_module(names: list[str], part: Any) -> list[str]:
    """Decide by the module that it builds: norms take `(x, valid)`, feed-forwards `x`."""
    config = next(iter(part_examples(part).values()), None) or part()
    if {"norm", "feedforward"} <= {*names}:
        module = _built_from_width(config)
        if module is None or isinstance(module, Position):
            return [name for name in names if name not in ("norm", "feedforward")]
        n_arguments = len(inspect.signature(module.forward).parameters)
        return ["norm" if n_arguments > 1 else "feedforward"]
    if {*names} == {"pattern", "loss"}:
        return ["pattern" if isinstance(config.build(), Mask) else "loss"]
    return names


def _built_from_width(config: Any) -> nn.Module | None:
    """Return the module built from `d_model`; None if `build` needs other arguments."""
    try:
        module = config.build(D_MODEL)
    except (AttributeError, TypeError):
        return None
    return module if isinstance(module, nn.Module) else None
