"""The check: valid combinations of parts, compared with reference definitions in float64."""

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


def check_family_name(family: str, names: Iterable[str] = FAMILY_NAMES) -> None:
    """Raise `InputError`, naming the nearest, for an unknown family of parts."""
    names = [*names]
    if family not in names:
        raise InputError(f"no family of parts is called {family!r}.{choices(family, names)}")
