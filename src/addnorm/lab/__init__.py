"""The laboratory: comparing runs, and variants of a recipe over several seeds."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from addnorm.lab.tables import StudyTable as StudyTable
    from addnorm.lab.tables import study as study

__all__ = ["StudyTable", "study"]


def __getattr__(name: str) -> Any:
    """Import the names above when they are used, for processes that train and draw nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("addnorm.lab.tables"), name)
