"""The types of stored weights that can be read, and the common type of mixed weights."""

from collections.abc import Mapping
from functools import reduce
from warnings import warn

import torch

from addnorm.errors import IgnoredSettings, InputError

READABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""The supported types. Weights of fewer bits have scales or a special layout."""

SHOWN = 3
"""The most weights of one type that the warning names."""


def check_readable(where: object, name: str, dtype: torch.dtype) -> None:
    """Raise `InputError` for a weight of an unsupported type."""
    if dtype not in READABLE:
        valid = ", ".join(map(name_of, READABLE))
        raise InputError(
            f"{where}: {name} holds {name_of(dtype)}, which is not read as weights: store it in "
            f"one of {valid}"
        )


def one_dtype(
    where: object, stored: Mapping[str, torch.dtype], named: object = None
) -> torch.dtype:
    """The type that weights of these types are converted to.

    If they differ, it is the type that the configuration has `named`, as in transformers, or else
    the widest, which rounds nothing; a warning names it.
    """
    kinds = dict.fromkeys(stored.values())
    if len(kinds) < 2:
        return next(iter(kinds), torch.float32)
    wanted = next((dtype for dtype in READABLE if name_of(dtype) == named), None)
    chosen = reduce(torch.promote_types, kinds) if wanted is None else wanted
    why = "the widest" if wanted is None else "the dtype of its config.json"
    counts = ", ".join(_counted(stored, dtype) for dtype in kinds)
    warn(
        f"{where}: weights of several types ({counts}): all are read in {name_of(chosen)}, {why}; "
        "another dtype may be given",
        IgnoredSettings,
        stacklevel=2,
    )
    return chosen


def name_of(dtype: torch.dtype) -> str:
    """The name of a type, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def _counted(stored: Mapping[str, torch.dtype], dtype: torch.dtype) -> str:
    names = [name for name, other in stored.items() if other == dtype]
    few = f": {', '.join(names)}" if len(names) <= SHOWN else ""
    return f"{len(names)} in {name_of(dtype)}{few}"
