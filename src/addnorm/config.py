"""The decorator of every configuration: a frozen, keyword-only dataclass that checks itself."""

from typing import Annotated, Any, TypeVar, dataclass_transform

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

T = TypeVar("T")

Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A share in [0, 1): a dropout rate, a smoothing mass, a fraction of a split."""


def _table_of(value: Any) -> Any:
    return {"kind": value} if isinstance(value, str) else value


WORD = BeforeValidator(_table_of)
"""For a union with kinds: a word is the kind with its defaults."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Make `cls` a frozen, keyword-only pydantic dataclass that refuses unknown fields.

    Raises pydantic's `ValidationError` (a `ValueError`) when a value is impossible.
    """
    make = dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
    return make(cls)  # pyright: ignore[reportReturnType]
