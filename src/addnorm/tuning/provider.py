"""The kernel choices of this machine: read from the file `$ADDNORM_KERNELS`, or measured."""

import os
from pathlib import Path

from pydantic import ValidationError

from addnorm.config import ConfigError, first_problem
from addnorm.errors import InputError, nearest
from addnorm.files import read_file
from addnorm.nn.choices import CHOICES, KernelChoices, given_in_thread
from addnorm.tuning.calibration import calibrated, load_operators

VARIABLE = "ADDNORM_KERNELS"


def machine_choices() -> KernelChoices:
    """The choices for this machine and its number of threads, measured unless given.

    Their operators are loaded: a forward compiles nothing. `addnorm.models` installs this as the
    provider of `addnorm.nn.choices`.
    """
    chosen = given_choices() or calibrated().choices
    load_operators(chosen)
    return chosen


def read_choices(file: Path) -> KernelChoices:
    """Read choices from a JSON file. Raises `InputError` naming the file and the nearest value."""
    try:
        return CHOICES.validate_json(read_file(file, 2**16))
    except OSError as error:
        near = nearest(file.name, [other.name for other in file.parent.glob("*.json")])
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
    name = os.environ.get(VARIABLE)
    try:
        return read_choices(Path(name)) if name else None
    except InputError as error:
        raise InputError(f"{VARIABLE}: {error}") from error


def check_choices() -> None:
    """Raise `InputError` for a wrong `$ADDNORM_KERNELS`, unless `use_choices` overrides it."""
    if given_in_thread() is None:
        given_choices()
