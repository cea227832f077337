"""`--import`: the files and modules of one's own parts, named on the command line."""

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
"""The option of every command that meets parts of people's own."""


def import_named(names: Sequence[str]) -> None:
    """Import what was named. Raises `InputError` for what is not there."""
    if names:
        from addnorm.runs.imports import import_parts

        import_parts(names)
