"""The check: all valid combinations of parts, compared with plain float64 reference definitions."""

from collections.abc import Iterable

from addnorm.errors import InputError, choices

FAMILY_NAMES = (
    "positions",
    "scalings",
    "norms",
    "placements",
    "mixers",
    "scores",
    "patterns",
    "cores",
    "outputs",
    "feedforwards",
    "embeddings",
    "inputs",
    "heads",
    "models",
)
"""The plural names of our families of parts (see `check.parts`), known before any is imported."""


def check_family_name(family: str, known: Iterable[str] = FAMILY_NAMES) -> None:
    """Raise `InputError` for a name that no family of parts has, with the nearest."""
    if family not in (names := [*known]):
        raise InputError(f"no family of parts is called {family!r}.{choices(family, names)}")
