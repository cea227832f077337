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

from addnorm.config import config, first_problem, sentence
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
    """Whether memory that a training step frees is kept for the next one.

    Not measured: what tells the C library to keep it cannot be taken back within a process, and a
    process of its own takes seconds to begin.
    """


DEFAULTS = KernelChoices()
"""What holds without a measurement: on other devices, and where a graph is built."""

CHOICES = TypeAdapter(KernelChoices)
_used: KernelChoices | None = None
"""Those that `use_choices` gave."""
_known: KernelChoices | None = None
"""Those of this machine, once they are known."""


def choices() -> KernelChoices:
    """The choices in force; measured on first use where nobody gave any.

    A compiler that traces a model before anything was measured gets the defaults.
    """
    global _known
    if _used is not None:
        return _used
    if _known is None and torch.compiler.is_compiling():
        return DEFAULTS
    if _known is None:
        _known = given_choices() or _measured()
    return _known


def choices_for(threads: int) -> KernelChoices:
    """The choices for work on so many threads: those given, or measured with as many."""
    if (given := _used or given_choices()) is not None:
        return given
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return _measured()
    finally:
        torch.set_num_threads(before)


@contextmanager
def use_choices(chosen: KernelChoices | None) -> Generator[None]:
    """Use these choices within the block, in every thread; with None, those of this machine."""
    global _used
    before, _used = _used, chosen
    try:
        yield
    finally:
        _used = before


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
        details = error.errors(include_url=False)[0]
        known = details["type"] in ("unexpected_keyword_argument", "literal_error")
        problem = sentence(KernelChoices, details) if known else first_problem(error)
        raise InputError(f"{file}: {problem}") from error


def given_choices() -> KernelChoices | None:
    """The choices in the file that `$ADDNORM_KERNELS` names; None where it names none.

    Raises `InputError` naming the variable and the file.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    try:
        return read_choices(Path(named))
    except InputError as error:
        raise InputError(f"{VARIABLE}: {error}") from error
    except OSError as error:
        raise InputError(f"{VARIABLE}: {named}: {error.strerror}") from error


def _measured() -> KernelChoices:
    from addnorm.nn.calibration import calibrated

    return calibrated().choices
