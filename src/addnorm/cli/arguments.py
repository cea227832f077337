"""Arguments of commands: numbers in their ranges, and the names of a command's options."""

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from math import isfinite
from typing import Any, cast

from cyclopts import App

from addnorm.errors import InputError

LARGEST = 2**62
"""No integer of an option reaches it: torch counts up to twice as many."""


class UnknownWordError(InputError):
    """A word among a command's arguments is no option of it; `status` knows the nearest one."""

    def __init__(self, word: str) -> None:
        self.word = word
        super().__init__(f"Unknown option: {word}.")


def check_number(_: object, value: object) -> None:
    """Raise `ValueError` for NaN, infinity, and integers beyond what a machine counts to.

    Of a group of options, each is checked, and the error is an `InputError` that names it.
    """
    for one in cast(tuple[object, ...], value) if isinstance(value, tuple) else (value,):
        if problem := _problem(one):
            raise ValueError(problem)
    if is_dataclass(value):
        for field in fields(value):
            if problem := _problem(given := getattr(value, field.name)):
                raise InputError(f"`{field.name} = {given}`: {problem}")


def _problem(value: object) -> str:
    if isinstance(value, float) and not isfinite(value):
        return "must be a finite number"
    if isinstance(value, int) and abs(value) >= LARGEST:
        return "must be less than 2⁶²" if value > 0 else "must be more than -2⁶²"
    return ""


def at_least(least: int) -> Callable[[object, object], None]:
    """A check that a number is at least this."""

    def check(kind: object, value: object) -> None:
        check_number(kind, value)
        if isinstance(value, int | float) and value < least:
            raise ValueError(f"must be at least {least}")

    return check


def options_of(command: App) -> dict[str, str]:
    """The options of a command by the names of its parameters, which the library uses as well."""
    return {
        plain(name): option
        for argument in command.assemble_argument_collection()
        if (option := next((one for one in argument.names if one.startswith("--")), None))
        for name in (argument.field_info.name, option)
    }


def plain(name: str) -> str:
    """A name without dashes and underscores, which tell an option from a parameter."""
    return name.replace("_", "").replace("-", "")


def takes_fields(command: App) -> bool:
    """Whether a command takes fields of a recipe, as `--train.lr 3e-4`."""
    return any(one.field_info.name == "overrides" for one in _arguments(command))


def _arguments(command: App) -> Iterator[Any]:
    yield from command.assemble_argument_collection()
