"""Numbers in the cells of tables: what is one, and what a model cannot hold."""

from decimal import Decimal

import numpy as np

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that models hold, which compute in float32."""


def number_of(cell: object) -> float | None:
    """The number in a cell, infinite where it is too large for any; None for what is none.

    Neither is a truth value, nor what Python alone takes for a number, such as `1_000`.
    """
    if isinstance(cell, bool) or not isinstance(cell, int | float | str | Decimal):
        return None
    if isinstance(cell, str) and "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None
    except OverflowError:
        return float("inf")
