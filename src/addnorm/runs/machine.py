"""The kernels that a run is trained with: kept in its folder, so that it resumes with the same."""

import json
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from addnorm.atomic import atomic_write
from addnorm.config import config, first_problem
from addnorm.errors import InputError
from addnorm.files import read_file
from addnorm.nn.calibration import Calibration, Machine, this_machine
from addnorm.nn.choices import VARIABLE, KernelChoices, choices, use_choices
from addnorm.train.checkpoint import checkpoints_in

FILE = "machine.json"
EARLIER = KernelChoices(product="onednn")
"""The kernels of every run before they were measured."""


@config
class TrainedOn:
    """Where a run began and with which kernels, and where it went on since."""

    machine: Machine
    kernels: KernelChoices
    moved_to: tuple[Machine, ...] = ()
    """The machines that it went on with, one after the other, where they were others."""


TRAINED_ON = TypeAdapter(TrainedOn)


@contextmanager
def kernels_of(folder: Path, console: Console) -> Generator[None]:
    """Use the kernels that the run in `folder` began with; a new run begins with this machine's.

    What is other than when it was last trained is said on the `console`, and kept: on another
    processor, or with another version of torch, a resumed run is equal to an uninterrupted one up
    to rounding only. Raises `InputError` for a damaged file.
    """
    file = folder / FILE
    here = this_machine()
    if not checkpoints_in(folder / "checkpoints"):  # nothing to go on with
        trained = TrainedOn(machine=here, kernels=choices())
    elif file.is_file():
        trained = _read(file)
        for change in _changes((trained.machine, *trained.moved_to)[-1], here):
            console.out(f"{folder}: {change}: equal up to rounding", highlight=False)
            trained = replace(trained, moved_to=_with(trained.moved_to, here))
    else:
        console.out(f"{file}: missing: with torch's kernels from here on: equal up to rounding")
        trained = TrainedOn(machine=here, kernels=EARLIER)
    atomic_write(file, json.dumps(TRAINED_ON.dump_python(trained, mode="json"), indent=1))
    with use_choices(trained.kernels):
        yield


def _with(machines: tuple[Machine, ...], last: Machine) -> tuple[Machine, ...]:
    return machines if machines[-1:] == (last,) else (*machines, last)


def _read(file: Path) -> TrainedOn:
    try:
        return TRAINED_ON.validate_json(read_file(file, 2**16))
    except ValidationError as error:
        raise InputError(f"{file}: {first_problem(error)}") from error


def _changes(before: Machine, now: Machine) -> Generator[str]:
    for field in fields(before):  # pyright: ignore[reportArgumentType]
        old, new = getattr(before, field.name), getattr(now, field.name)
        if old != new:
            yield f"{field.name} was {old!r} so far and is {new!r} from here on"


def machine_table(found: Calibration, given: KernelChoices | None = None) -> Table:
    """The kernels of a machine, with the milliseconds that they rest on.

    Those `given` by the environment are shown beside what was measured.
    """
    machine = found.machine
    table = Table(
        "measured",
        "milliseconds",
        title=f"{machine.processor} · {machine.threads} threads · torch {machine.torch}",
        caption=f"measured on {found.date} in {found.seconds:g} s, again by `addnorm calibrate`"
        + ("; other work disturbed it: the defaults stand" if found.disturbed else ""),
    )
    for what, times in found.figures.items():
        table.add_row(what, ", ".join(f"{name} {ms:g}" for name, ms in times.items()))
    table.add_section()
    for field in fields(found.choices):  # pyright: ignore[reportArgumentType]
        measured = str(getattr(found.choices, field.name))
        used = measured if given is None else str(getattr(given, field.name))
        table.add_row(field.name, used if used == measured else f"{used} ({VARIABLE})")
    return table
