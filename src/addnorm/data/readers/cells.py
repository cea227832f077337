"""Cells of tables: the class or the number in one."""

import datetime
from collections.abc import Iterable
from decimal import Decimal
from reprlib import repr as short

import numpy as np

from addnorm.data.conversation import check_text
from addnorm.data.field_types import is_missing as is_missing
from addnorm.data.field_types import plain as plain
from addnorm.errors import InputError


class _Typed(str):
    """The name of a class whose cell is not text, of the type that the cell has."""

    __slots__ = ()


class Truth(_Typed):
    """The name of a truth value, `True` or `False`."""

    __slots__ = ()


class Integer(_Typed):
    """The name of an integer."""

    __slots__ = ()


class FloatingPoint(_Typed):
    """The name of a floating-point number, such as `1.0`."""

    __slots__ = ()


class DecimalNumber(_Typed):
    """The name of a decimal number, such as `1.00`."""

    __slots__ = ()


TYPES: dict[type[str], str] = {
    Truth: "a truth value",
    Integer: "an integer",
    FloatingPoint: "a floating-point number",
    DecimalNumber: "a decimal number",
}


def class_in(cell: object, where: str) -> str:
    """Return the name of the class in a cell; it keeps the type of a cell that is not text.

    A text and a number of the same spelling are one class. Raises `InputError` for a list, an
    object or bytes, and for invalid text.
    """
    match value := plain(cell):
        case str():
            check_text(value, where)
            return value.strip()
        case bool():
            return Truth(value)
        case int():
            return Integer(value)
        case float():
            return FloatingPoint(value + 0.0)  # -0.0 is 0.0
        case Decimal():
            return DecimalNumber(value)
        case datetime.date() | datetime.time():
            return str(value)
        case _:
            raise InputError(
                f"{where}: expected a class, which is a text, a number or a truth value, not "
                f"{short(cell)}"
            )


def check_one_type(classes: Iterable[tuple[str, str]]) -> None:
    """Raise `InputError` for classes of two types: 1, 1.0 and true would be three classes.

    `classes` are places and names.
    """
    first: tuple[str, _Typed] | None = None
    for where, name in classes:
        if not isinstance(name, _Typed):
            continue
        if first is None:
            first = where, name
        if type(name) is not type(first[1]):
            raise InputError(
                f"{where}: the class {name} is {TYPES[type(name)]}, and {first[1]} at {first[0]} "
                f"is {TYPES[type(first[1])]}: write the classes of a column in one type"
            )


LARGEST = float(np.finfo(np.float32).max)
"""The largest number that models hold: they compute in float32."""


def number_of(cell: object) -> float | None:
    """Return the number in a cell, infinite where it is too large for any; None for other cells.

    Truth values are not numbers here, nor are Python's own spellings such as `1_000`.
    """
    if isinstance(cell, bool) or not isinstance(cell, int | float | str | Decimal):
        return None
    if isinstance(cell, str) and "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None
    except OverflowError:
        return float("inf")
