"""The one exception for a user's mistake, and the nearest valid name to offer with it."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Input that cannot be used: the message says what is wrong, where, and what would be right.

    The command line prints the message alone and exits with status 2; every other exception is a
    fault of AddNorm and keeps its traceback.
    """


def nearest(name: str, valid: Iterable[str]) -> str:
    """" Did you mean 'x'?" for the valid name closest to `name`, or an empty string."""
    matches = get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""
