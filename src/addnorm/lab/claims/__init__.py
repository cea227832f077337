"""The ten claims of the tutorials, one file each, with their figures and report.

`addnorm lab` reads the names without importing torch: a claim is imported when it is used.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from addnorm.errors import InputError, choices

if TYPE_CHECKING:
    from addnorm.lab.claims.claim import Claim

CLAIMS = (
    "extrapolation",
    "word_order",
    "warmup",
    "norms",
    "score_scale",
    "heads",
    "distance",
    "residuals",
    "rmsnorm",
    "cache",
)
"""The names of the claims, in their order."""


def claims_called(names: Sequence[str]) -> tuple[str, ...]:
    """The claims with these names; every claim for "all".

    Raises `InputError` for the first that does not exist.
    """
    for name in names:
        if name != "all":
            _check(name)
    return CLAIMS if "all" in names else tuple(dict.fromkeys(names))


def claim_called(name: str) -> "Claim":
    """The claim with this name. Raises `InputError` with the nearest name if there is none."""
    _check(name)
    return import_module(f"{__name__}.{name}").CLAIM


def _check(name: str) -> None:
    if name not in CLAIMS:
        raise InputError(f"no claim is called {name!r}.{choices(name, CLAIMS)}")
