"""What may stop a command: a user's mistake, training that diverges, a request to stop."""

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Input that cannot be used: the message says what is wrong, where, and what would be right.

    The command line prints the message alone and exits with status 2; an exception that is not in
    this file is a fault of AddNorm and keeps its traceback.
    """


class NonFiniteError(ArithmeticError):
    """A loss or a gradient is not a finite number; the update was not made."""


class Interrupted(Exception):
    """Training was asked to stop; everything up to `step` is saved."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped after step {step}, which is saved")
        self.step = step


def nearest(name: str, valid: Iterable[str]) -> str:
    """The hint `Did you mean ...?` with the valid name closest to `name`, or an empty string."""
    matches = get_close_matches(name, list(valid), n=1, cutoff=0.5)
    return f" Did you mean {matches[0]!r}?" if matches else ""
