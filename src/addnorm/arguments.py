"""Checks of arguments against the types that functions and options declare."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, wraps
from math import isfinite
from operator import index
from os import PathLike
from pathlib import Path
from reprlib import repr as short
from types import FunctionType, UnionType
from typing import (
    TYPE_CHECKING,
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
    is_typeddict,
)

if TYPE_CHECKING:
    from inspect import Signature

from addnorm.errors import InputError, choices

P = ParamSpec("P")
T = TypeVar("T")

LARGEST = 2**62
"""No integer of an option reaches it: torch counts up to twice as many."""


OR_STRING = ("stop",)
"""Arguments of several strings for which a single one may be given."""

LEAST = {"batch_size": 1, "first": 0}
"""The least value of arguments of that name."""


def known_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap `function` to raise `InputError` for unknown keywords and values of wrong types.

    Also of the options that are declared by `**options: Unpack[...]`.
    """

    @wraps(function)
    def call(*args: P.args, **values: P.kwargs) -> T:
        names, hints = _keywords(function)
        for name in values:
            if name not in names:
                raise InputError(
                    f"{function.__name__}() has no argument {name}.{choices(name, names)}"
                )
        check_types(hints, {**dict(zip(_positional(function), args, strict=False)), **values})
        return function(*args, **values)

    call.__signature__ = _with_options(function)  # pyright: ignore[reportAttributeAccessIssue]
    return call


def shows_options(function: Callable[P, T]) -> Callable[P, T]:
    """List each option in the signature of a function that takes `**options` and checks them."""
    function.__signature__ = _with_options(function)  # pyright: ignore[reportFunctionMemberAccess]
    return function


class AsWritten(str):
    """A piece of source that signatures show without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _with_options(function: Callable[..., Any]) -> "Signature":
    """The signature of a function with its options' names in place of `**options`.

    An option that is left out is that of the run, which is written as `...`. A string is the
    source of a type, which is shown without quotes, and a function is shown by its name.
    """
    from inspect import Parameter, signature

    of_function = signature(function)
    parameters: list[Parameter] = []
    for parameter in of_function.parameters.values():
        parameter = parameter.replace(annotation=_shown(parameter.annotation))
        if isinstance(parameter.default, FunctionType):
            name = parameter.default.__name__.replace("<lambda>", "...")
            parameter = parameter.replace(default=AsWritten(name))
        if parameter.kind is not Parameter.VAR_KEYWORD or not get_args(parameter.annotation):
            parameters.append(parameter)
            continue
        [group] = get_args(parameter.annotation)
        parameters += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=AsWritten("..."), annotation=type_)
            for name, type_ in get_type_hints(group).items()
        ]
    result = _shown(of_function.return_annotation)
    return of_function.replace(parameters=parameters, return_annotation=result)


def _shown(annotation: Any) -> Any:
    return AsWritten(annotation) if isinstance(annotation, str) else annotation


@cache
def _keywords(function: Callable[..., Any]) -> tuple[list[str], dict[str, Any]]:
    """The names and types of a function's arguments and options.

    An annotation that is a string names a union as readers of the signature know it.
    """
    from inspect import Parameter, signature

    names: list[str] = []
    hints: dict[str, Any] = {}
    of_function = get_type_hints(function, include_extras=True)
    for name, parameter in signature(function).parameters.items():
        if parameter.kind is Parameter.VAR_KEYWORD:
            [group] = get_args(parameter.annotation)
            options = get_type_hints(group)
            names += options
            hints |= options
        elif name not in ("self", "cls"):
            names.append(name)
            if name in function.__annotations__:
                hints[name] = of_function[name]
    return names, hints


@cache
def _positional(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's positional arguments, including self."""
    code = function.__code__
    return code.co_varnames[: code.co_argcount]


def check_types(hints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise `InputError` for a value of a wrong type, or below its minimum."""
    for name, value in values.items():
        if name in OR_STRING and isinstance(value, str):
            continue
        if name in hints and (problem := problem_of_type(hints[name], value)):
            shown = value[0] if isinstance(value, tuple) and len(value) == 1 else value
            raise InputError(f"`{name} = {short(shown)}`: {problem}")
    for name, least in LEAST.items():
        if name in values and name in hints and index(cast(SupportsIndex, values[name])) < least:
            raise InputError(f"`{name} = {values[name]}`: must be at least {least}")


def problem_of_type(hint: Any, value: object) -> str:
    """The problem with a value's type, such as `must be an integer`; empty if there is none.

    Values of lists, of protocols and of unions with either are taken as they come.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return problem_of_type(inner[0], value)
    if origin in (Union, UnionType):
        return _problem_of_union(inner, value)
    if origin is Literal:
        return _problem_of_word(inner, value)
    if origin in (tuple, Sequence, Collection):
        is_ordered = origin is not Collection
        return _problem_of_several(inner[0], value, is_ordered=is_ordered)
    hint = origin or hint
    if hint in _PLAIN:
        return _PLAIN[hint](value)
    return "" if not _is_class(hint) or isinstance(value, hint) else f"must be {hint.__name__}"


def _is_class(hint: Any) -> bool:
    """Whether values can be checked against a type, since it is a class and not a protocol."""
    is_open = hint in (Any, list) or is_typeddict(hint) or getattr(hint, "_is_protocol", False)
    return isinstance(hint, type) and not is_open


def _problem_of_union(kinds: tuple[Any, ...], value: object) -> str:
    problems = [problem_of_type(kind, value) for kind in kinds]
    if "" in problems:
        return ""
    if any(get_origin(kind) is PathLike for kind in kinds):
        return "must be a path, a string or a Path"
    classes = [kind.__name__ for kind in kinds if _is_class(kind) and kind not in _PLAIN]
    return f"must be {' or '.join(classes)}" if len(classes) > 1 else problems[0]


def _problem_of_word(valid: tuple[Any, ...], value: object) -> str:
    """The problem with a value that must be one of some words; true is not 1."""
    if any(type(value) is type(word) and value == word for word in valid):
        return ""
    return f"does not exist.{choices(str(value), map(str, valid))}"


def _problem_of_several(hint: Any, value: object, *, is_ordered: bool) -> str:
    """The problem with a value that must be a sequence, but not a string."""
    without_order = isinstance(value, Mapping | Set) and is_ordered
    if without_order or isinstance(value, str | bytes) or not isinstance(value, Iterable):
        return "must be a list or a tuple"
    values = cast(Iterable[object], () if isinstance(value, Iterator) else value)
    return next((f"each {text}" for item in values if (text := problem_of_type(hint, item))), "")


def problem_of_integer(value: object) -> str:
    """The problem with a value that must be an integer; empty if there is none."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return "must be an integer"
    if abs(index(value)) >= LARGEST:
        return "must be less than 2⁶²" if index(value) > 0 else "must be more than -2⁶²"
    return ""


def problem_of_number(value: object) -> str:
    """The problem with a value that must be a number; empty if there is none."""
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
    PathLike: _other_than(PathLike, "a path, a string or a Path"),
    Mapping: _other_than(Mapping, "a dictionary"),
    Callable: _other_than(Callable, "a function"),
    type(None): _other_than(type(None), "None"),
}
"""The types that are checked, and what is wrong with a value as one of them."""
