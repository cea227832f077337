"""Which of several equivalent kernels is used, where that depends on the processor.

All kernels of a choice compute the same function, up to rounding. `choices()` returns those in
force: given by `use_choices`, read from the file that `$ADDNORM_KERNELS` names, or measured once
for this machine (see `calibration`).
"""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter, ValidationError
from torch.autograd import forward_ad

from addnorm.config import ConfigError, config, first_problem
from addnorm.errors import InputError, nearest
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


class _InThread(threading.local):
    """What `use_choices` gave, for each thread its own.

    Set by `__init__`, because a compiler guards attributes, and no default of a class. A
    `ContextVar` it does not trace.
    """

    def __init__(self) -> None:
        self.chosen: KernelChoices | None = None


_here = _InThread()
_of_machine: dict[int, KernelChoices] = {}
"""What was read or measured in this process, by the number of threads."""
_newest = DEFAULTS
"""The last of these, for a compiler, which does not trace the number of threads."""
_measuring = threading.Lock()


def choices() -> KernelChoices:
    """The choices in force; measured on first use where nobody gave any.

    A compiler that traces a model before anything was measured gets the defaults.
    """
    if _here.chosen is not None:
        return _here.chosen
    if torch.compiler.is_compiling():
        return _newest
    found = _of_machine.get(torch.get_num_threads())
    return _first_use() if found is None else found


def _first_use() -> KernelChoices:
    global _newest
    threads = torch.get_num_threads()
    with _measuring:
        if threads not in _of_machine:
            _of_machine[threads] = _newest = given_choices() or _measured()
    return _of_machine[threads]


@contextmanager
def use_choices(chosen: KernelChoices | None) -> Generator[None]:
    """Use these choices within the block; with None, those of this machine.

    They hold in the thread that entered the block. Backward passes need none: on a CPU, whose
    kernels these are, they run in the thread that asked for them, by the kernels of the forward.
    """
    before, _here.chosen = _here.chosen, chosen
    try:
        yield
    finally:
        _here.chosen = before


def transformed() -> bool:
    """Whether `torch.func` or forward mode is at work, of which only torch's kernels know."""
    return (
        torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]
        or forward_ad._current_level >= 0  # pyright: ignore[reportPrivateUsage]
    )


def read_choices(file: Path) -> KernelChoices:
    """Read choices from a JSON file. Raises `InputError` naming the file and the nearest value."""
    try:
        return CHOICES.validate_json(read_file(file, 2**16))
    except OSError as error:
        near = nearest(file.name, [one.name for one in file.parent.glob("*.json")])
        raise InputError(f"{file}: {error.strerror}.{near}") from error
    except ValidationError as error:
        problem = ConfigError.about(KernelChoices, error).sentence
        of_a_field = bool(error.errors()[0]["loc"])
        problem = problem.removeprefix("KernelChoices: ") if of_a_field else first_problem(error)
        raise InputError(f"{file}: {problem}") from error


def given_choices() -> KernelChoices | None:
    """The choices in the file that `$ADDNORM_KERNELS` names; None where it names none.

    Raises `InputError` naming the variable.
    """
    named = os.environ.get(VARIABLE)
    try:
        return read_choices(Path(named)) if named else None
    except InputError as error:
        raise InputError(f"{VARIABLE}: {error}") from error


def check_choices() -> None:
    """Raise `InputError` now for a wrong `$ADDNORM_KERNELS`, where `use_choices` gave none."""
    if _here.chosen is None:
        given_choices()


def _measured() -> KernelChoices:
    from addnorm.nn.calibration import calibrated

    return calibrated().choices
