"""`--import`: files and modules with custom parts."""

from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter

Imports = Annotated[
    tuple[str, ...],
    Parameter(
        name="--import",
        negative="",
        show_default=False,
        help="A file or module with parts of your own: `my_parts.py`. May be given again.",
    ),
]
"""The option of all commands that support custom parts."""


def import_named(names: Sequence[str]) -> None:
    """Import the named files and modules. Raises `InputError` if one does not exist."""
    if names:
        from addnorm.runs.recipes.custom_parts import import_parts

        import_parts(names)
