"""Definitions: which function defines which part, one table a family, looked up by type."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from addnorm.errors import InputError
from addnorm.parts import kind_of

Definition = TypeVar("Definition")


class MissingDefinition(InputError):
    """A part that no table defines, or a table that defines none of a part's settings."""


class Definitions(Generic[Definition]):
    """The definitions of one family: configuration class to plain function(s) in float64.

    `wrap` makes an entry of what someone gives as the definition of their own part.
    """

    def __init__(
        self,
        family: str,
        file: str,
        known: Mapping[type, Definition],
        *,
        wrap: Callable[[Any], Definition] | None = None,
    ) -> None:
        self.family = family
        self.file = file
        self._known = dict(known)
        self._wrap = wrap

    def __contains__(self, part: type) -> bool:
        return part in self._known

    def of(self, config: Any) -> Definition:
        """The definition of this part. Raises `MissingDefinition` where there is none."""
        try:
            return self._known[type(config)]
        except KeyError:
            raise MissingDefinition(
                f"{self.family} {kind_of(config)!r} has no definition: add it to "
                f"check/definition/{self.file}, or give one by --definition"
            ) from None

    @contextmanager
    def adding(self, part: type, definition: Any) -> Generator[None]:
        """Define someone's own part for a while."""
        self._known[part] = definition if self._wrap is None else self._wrap(definition)
        try:
            yield
        finally:
            del self._known[part]
