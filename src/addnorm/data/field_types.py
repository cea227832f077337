"""The values of an example's fields: read from the cells of a table, or refused by their types."""

import math
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from decimal import Decimal
from functools import cache
from reprlib import repr as short
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import ConfigDict, PydanticSchemaGenerationError, TypeAdapter, ValidationError

from addnorm.data.conversation import check_text
from addnorm.errors import InputError

LARGEST_INTEGER = 2**63 - 1
"""The largest integer that a tensor holds."""

LAX = ConfigDict(allow_inf_nan=False)
"""Numbers may be written as text, as every cell of a CSV file is; NaN and infinity are refused."""

NAMES: dict[object, tuple[str, str]] = {
    str: ("text", "texts"),
    int: ("an integer", "integers"),
    float: ("a number", "numbers"),
    bool: ("true or false", "truth values"),
}
"""Types of values, one and several."""


NUMPY = (np.generic, np.ndarray)
MAY_BE_NAN = (float, Decimal)


def plain(cell: Any) -> object:
    """Return a number or an array of numpy as Python's own, and any other cell unchanged."""
    return cell.tolist() if isinstance(cell, NUMPY) else cell


def is_missing(cell: object) -> bool:
    """Whether a cell is empty: None, NaN or blank text."""
    cell = plain(cell)
    if isinstance(cell, MAY_BE_NAN) and math.isnan(cell):
        return True
    return cell is None or (isinstance(cell, str) and not cell.strip())


def fields_of(kind: type) -> tuple[Field[Any], ...]:
    """Return the fields of a kind of example. Raises `InputError` unless it is a dataclass."""
    if not is_dataclass(kind):
        raise InputError(
            f"{kind.__name__} is not a dataclass: put @dataclass(frozen=True) above it"
        )
    return fields(kind)


def is_needed(field: Field[Any]) -> bool:
    """Return whether a field has no default."""
    return field.default is field.default_factory is MISSING


@cache
def types_of(kind: type) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field, and whether it may be None: of `X | None`, X and True.

    Raises `InputError` for a type that cannot be found.
    """
    try:
        hints = get_type_hints(kind)
    except NameError as error:
        raise InputError(f"{kind.__name__}: the type of a field: {error}: import it") from error
    return {field.name: _without_none(hints[field.name]) for field in fields_of(kind)}


def _without_none(hint: Any) -> tuple[Any, bool]:
    inner = [member for member in get_args(hint) if member is not type(None)]
    is_optional = get_origin(hint) in (Union, UnionType) and len(inner) < len(get_args(hint))
    return (inner[0], True) if is_optional and len(inner) == 1 else (hint, is_optional)


def are_texts(hint: Any) -> bool:
    """Return whether a type is that of a list of texts."""
    return hint in (tuple[str, ...], list[str])


def value_of(kind: type, name: str, cell: object) -> object:
    """Return the value of a field that a cell has; None where the cell is empty.

    A list becomes a tuple, and a single value stands for a list with this value. Raises
    `InputError` for a cell of another type.
    """
    (hint, _), cell = types_of(kind)[name], plain(cell)
    if cell is None or (is_missing(cell) and hint is not str):
        return None
    if get_origin(hint) is tuple and not isinstance(cell, list | tuple):
        cell = [cell]
    wrong = f"{name}: expected {_described(hint)}, not {short(cell)}"
    _check_leaves(hint, cell, name, wrong)
    if hint is str:
        if not isinstance(cell, str):
            raise InputError(wrong)
        return cell
    try:
        value = _adapter(hint).validate_python(cell)
    except ValidationError as error:
        raise InputError(wrong) from error
    except PydanticSchemaGenerationError as error:
        raise InputError(
            f"{name}: a cell of a table cannot be {_described(hint)}: give such examples in "
            "Python, or as data of your own"
        ) from error
    if any(isinstance(leaf, int) and abs(leaf) > LARGEST_INTEGER for leaf in _leaves(value)):
        raise InputError(f"{name}: an integer of more than 64 bits: {short(cell)}")
    return value


@cache
def _adapter(hint: Any) -> Any:
    return TypeAdapter(hint, config=None if is_dataclass(hint) else LAX)


def _leaves(value: Any) -> Iterator[object]:
    """The values in a list of any depth."""
    if isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner)
    elif isinstance(value, dict):
        yield from _leaves([*value.values()])
    else:
        yield value


def _check_leaves(hint: Any, cell: object, where: str, wrong: str) -> None:
    """Raise `InputError` for a value that is not text, or a truth value in place of a number."""
    text_alone, has_truths = hint is str or are_texts(hint), "bool" in str(hint)
    for leaf in _leaves(cell):
        if isinstance(leaf, str):
            check_text(leaf, where)
        elif text_alone or (isinstance(leaf, bool) and not has_truths and hint is not Any):
            raise InputError(wrong)


def _described(hint: Any) -> str:
    if hint in NAMES:
        return NAMES[hint][0]
    inner = [member for member in get_args(hint) if member is not ...]
    if get_origin(hint) in (tuple, list) and len(set(inner)) == 1 and inner[0] in NAMES:
        return f"a list of {NAMES[inner[0]][1]}"
    return getattr(hint, "__name__", str(hint)) if not get_args(hint) else str(hint)


@cache
def text_fields(kind: type) -> tuple[tuple[str, bool, bool], ...]:
    """Return the fields of texts: name, whether it is a single text, whether it may be None."""
    return tuple(
        (name, hint is str, is_optional)
        for name, (hint, is_optional) in types_of(kind).items()
        if hint is str or are_texts(hint)
    )


def wrong_text(example: object) -> tuple[str, object] | None:
    """Return the first field that must be a text or several, with the value that is none.

    None if all are. A single text is not several: it would be read letter by letter.
    """
    for name, is_single, is_optional in text_fields(type(example)):
        value = getattr(example, name)
        if is_single or value is None or isinstance(value, str):
            is_right = (value is None and is_optional) or (is_single and isinstance(value, str))
            wrong = [] if is_right else [value]
        else:
            wrong = [text for text in value if not isinstance(text, str)]
        if wrong:
            return name, wrong[0]
    return None
