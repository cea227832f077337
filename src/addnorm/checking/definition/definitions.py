"""Tables of reference definitions, one per family, looked up by configuration class."""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from addnorm.errors import InputError
from addnorm.parts import kind_of

Definition = TypeVar("Definition")


class MissingDefinition(InputError):
    """A part, or a setting of a part, has no reference definition."""


class Definitions(Generic[Definition]):
    """One family's definitions: from configuration class to plain float64 function(s).

    `wrap` converts a user's definition of a custom part to an entry of the table.
    """

    def __init__(
        self,
        family: str,
        file: str,
        table: Mapping[type, Definition],
        *,
        wrap: Callable[[Any], Definition] | None = None,
    ) -> None:
        self.family = family
        self.file = file
        self._known = dict(table)
        self._wrap = wrap

    def __contains__(self, part: type) -> bool:
        return part in self._known

    def of(self, config: Any) -> Definition:
        """The definition of this part. Raises `MissingDefinition` if there is none."""
        try:
            return self._known[type(config)]
        except KeyError:
            raise MissingDefinition(
                f"{self.family} {kind_of(config)!r} has no definition: add it to "
                f"checking/definition/{self.file}, or give one by `definition`"
            ) from None

    @contextmanager
    def adding(self, part: type, definition: Any) -> Generator[None]:
        """Temporarily add the definition of a custom part."""
        self._known[part] = definition if self._wrap is None else self._wrap(definition)
        try:
            yield
        finally:
            del self._known[part]
