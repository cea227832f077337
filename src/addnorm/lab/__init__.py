"""The laboratory: comparing runs, and variants of a recipe over several seeds."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from addnorm.errors import optional

if TYPE_CHECKING:
    from addnorm.lab.studies.ablation import StudyTable as StudyTable
    from addnorm.lab.studies.ablation import study as study

__all__ = ["StudyTable", "study"]

PACKAGES = ("matplotlib", "markdown_it", "scipy.stats")
"""What the extra `lab` installs."""


def check_packages(what: str) -> None:
    """Raise `InputError`, before any work is done, if `what` lacks an optional package."""
    for module in PACKAGES:
        optional(module, "lab", what)


def __getattr__(name: str) -> Any:
    """Import a name above when it is used: `addnorm lab --help` and workers start without torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("addnorm.lab.studies.ablation"), name)
