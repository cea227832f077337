"""The ten claims of the tutorials, each in a file of its own."""

from importlib import import_module

from addnorm.errors import InputError, choices
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


def claim_called(name: str) -> Claim:
    """The claim of a name. Raises `InputError` with the nearest name if there is none."""
    if name not in CLAIMS:
        raise InputError(f"no claim is called {name!r}.{choices(name, CLAIMS)}")
    return import_module(f"{__name__}.{name}").CLAIM
