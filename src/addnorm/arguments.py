"""Checks of arguments against the types that functions and options declare for them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, wraps
from math import isfinite
from operator import index
from os import PathLike
from pathlib import Path
from reprlib import repr as short
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    ParamSpec,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from addnorm.errors import InputError, choices

P = ParamSpec("P")
T = TypeVar("T")

LARGEST = 2**62
"""No integer of an option reaches it: torch counts up to twice as many."""


def known_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap `function` to raise `InputError` for unknown keywords, and options of another type.

    Options are its keyword-only arguments, and those of `**options: Unpack[...]`.
    """

    @wraps(function)
    def call(*args: P.args, **values: P.kwargs) -> T:
        names, hints = _keywords(function) if values else ([], {})
        for name in values:
            if name not in names:
                raise InputError(
                    f"{function.__name__}() has no argument {name}.{choices(name, names)}"
                )
        check_types(hints, values)
        return function(*args, **values)

    return call


@cache
def _keywords(function: Callable[..., Any]) -> tuple[list[str], dict[str, Any]]:
    """The argument names of a function, and the types of those that are options."""
    from inspect import Parameter, signature

    names: list[str] = []
    hints: dict[str, Any] = {}
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            [group] = get_args(parameter.annotation)
            options = get_type_hints(group)
            names += options
            hints |= options
        elif name not in ("self", "cls"):
            names.append(name)
            if parameter.kind is Parameter.KEYWORD_ONLY and name in function.__annotations__:
                hints[name] = parameter.annotation
    return names, hints


def check_types(hints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise `InputError` for a value of another type than its own, and a batch of no texts."""
    for name, value in values.items():
        if name in hints and (problem := problem_of_type(hints[name], value)):
            shown = value[0] if isinstance(value, tuple) and len(value) == 1 else value
            raise InputError(f"`{name} = {short(shown)}`: {problem}")
    if "batch_size" in values and index(values["batch_size"]) < 1:
        raise InputError(f"`batch_size = {values['batch_size']}`: must be at least 1")


def problem_of_type(hint: Any, value: object) -> str:
    """What is wrong with a value by its type: `must be an integer`; empty if nothing is.

    Types other than numbers, words, paths and sequences of them are taken as they come.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return problem_of_type(inner[0], value)
    if origin in (Union, UnionType):
        problems = [problem_of_type(kind, value) for kind in inner]
        return "" if "" in problems else problems[0]
    if origin is Literal:
        return _problem_of_word(inner, value)
    if origin is tuple or (origin is Sequence and not isinstance(value, str)):
        return _problem_of_several(inner[0], value)
    return _PLAIN[hint](value) if hint in _PLAIN else ""


def _problem_of_word(valid: tuple[Any, ...], value: object) -> str:
    """A word is one of the valid ones; true and false are not 1 and 0."""
    if any(type(value) is type(word) and value == word for word in valid):
        return ""
    return f"does not exist.{choices(str(value), map(str, valid))}"


def _problem_of_several(hint: Any, value: object) -> str:
    """Several values are a sequence, and no string, whose letters would be taken for them."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return "must be a list or a tuple"
    values = cast(Iterable[object], value)
    return next((f"each {text}" for item in values if (text := problem_of_type(hint, item))), "")


def problem_of_integer(value: object) -> str:
    """What is wrong with a value as an integer."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return "must be an integer"
    if abs(index(value)) >= LARGEST:
        return "must be less than 2⁶²" if index(value) > 0 else "must be more than -2⁶²"
    return ""


def problem_of_number(value: object) -> str:
    """What is wrong with a value as a number."""
    if isinstance(value, bool | str) or not isinstance(value, SupportsFloat):
        return "must be a number"
    if isinstance(value, int):
        return problem_of_integer(value)
    return "" if isfinite(float(value)) else "must be a finite number"


def _other_than(kinds: Any, what: str) -> Callable[[object], str]:
    return lambda value: "" if isinstance(value, kinds) else f"must be {what}"


_PLAIN: dict[Any, Callable[[object], str]] = {
    int: problem_of_integer,
    float: problem_of_number,
    str: _other_than(str, "a string"),
    bool: _other_than(bool, "true or false"),
    Path: _other_than((str, PathLike), "a path, a string or a Path"),
    type(None): _other_than(type(None), "None"),
}
"""The types that are checked, and what is wrong with a value as one of them."""
