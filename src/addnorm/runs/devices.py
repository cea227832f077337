"""Devices and weight dtypes by name."""

import torch

from addnorm.errors import InputError, choices, nearest

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}
"""The dtypes that weights may have."""


def dtype_named(name: str | torch.dtype) -> torch.dtype:
    """The dtype of this name. Raises `InputError` for an unknown one."""
    word = str(name).removeprefix("torch.")
    if word not in DTYPES:
        raise InputError(f"dtype = {word!r} is none of weights.{choices(word, DTYPES)}")
    return DTYPES[word]


def device_named(name: str | torch.device) -> torch.device:
    """The device of this name; "auto" selects a GPU if there is one.

    Raises `InputError` if it is not available.
    """
    if name == "auto":
        name = next((one for one, there in _accelerators().items() if there), "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        here = ["cpu", *(one for one, there in _accelerators().items() if there)]
        known = ["auto", "cpu", *_accelerators()]
        word = str(name).partition(":")[0]
        near = "" if word in known else nearest(word, known)
        raise InputError(
            f"`device = {str(name)!r}` is not here.{near} torch sees: {', '.join(here)}."
        ) from error
    return device


def _accelerators() -> dict[str, bool]:
    """The accelerators that torch supports, and whether they are available."""
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
