"""Which of several equivalent kernels is used, where that depends on the processor.

All kernels of a choice compute the same function, up to rounding. `choices()` returns those in
force: given by `use_choices`, read from the file that `$ADDNORM_KERNELS` names, or measured once
for this machine (see `calibration`).
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from torch.autograd import forward_ad

from addnorm.config import config, first_problem
from addnorm.errors import InputError
from addnorm.files import read_file

UNLIMITED = 2**62
VARIABLE = "ADDNORM_KERNELS"


@config
class KernelChoices:
    """The kernels for a CPU; the defaults are those that are right on most processors."""

    product: Literal["torch", "onednn"] = "torch"
    """The library that multiplies float32 matrices: torch's own choice (MKL), or oneDNN."""
    bias: Literal["torch", "fused"] = "torch"
    """Where products of bfloat16 get their bias: in a pass of torch's own, or within the product.

    A compiler always adds it in the loop that follows the product.
    """
    few_queries: NonNegativeInt = 8
    """Number of queries up to which float32 attention is computed by plain products."""
    short_keys: NonNegativeInt = 1024
    """Number of keys up to which attention trains by plain products under bfloat16 autocast.

    They round scores to bfloat16, as autocast does with all products.
    """
    many_scores: NonNegativeInt = 2**22
    """Number of scores above which plain products in bfloat16 are computed in blocks."""
    logits_at_once: PositiveInt = 2**22
    """Number of logits that the loss of a vocabulary materialises at once."""
    keep_pages: bool = True
    """Whether memory that a training step frees is kept for the next one."""


DEFAULTS = KernelChoices()
"""What holds without a measurement: on other devices, and where a graph is built."""

CHOICES = TypeAdapter(KernelChoices)
_current: KernelChoices | None = None


def choices() -> KernelChoices:
    """The choices in force; measured on first use where nobody gave any.

    A compiler that traces a model before anything was measured gets the defaults.
    """
    global _current
    if _current is None and torch.compiler.is_compiling():
        return DEFAULTS
    if _current is None:
        _current = _given() or _measured()
    return _current


@contextmanager
def use_choices(chosen: KernelChoices | None) -> Generator[None]:
    """Use these choices within the block; with None, those of this machine."""
    global _current
    before, _current = _current, chosen
    try:
        yield
    finally:
        _current = before


def transformed() -> bool:
    """Whether `torch.func` or forward mode is at work, of which only torch's kernels know."""
    return (
        torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]
        or forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]
    )


def read_choices(file: Path) -> KernelChoices:
    """Read choices from a JSON file. Raises `InputError` naming the file."""
    try:
        return CHOICES.validate_json(read_file(file, 2**16))
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}") from error


def _given() -> KernelChoices | None:
    named = os.environ.get(VARIABLE)
    return read_choices(Path(named)) if named else None


def _measured() -> KernelChoices:
    from addnorm.nn.calibration import calibrated

    return calibrated().choices
