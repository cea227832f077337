"""The kernels that a run is trained with, kept in its folder so that it resumes with the same."""

import json
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path

from pydantic import TypeAdapter
from rich.console import Console
from rich.table import Table

from addnorm.atomic import atomic_write
from addnorm.config import config
from addnorm.files import read_json
from addnorm.nn.choices import KernelChoices, choices, use_choices
from addnorm.training.checkpoint import checkpoints_in, latest_checkpoint
from addnorm.tuning.calibration import Calibration, Machine, load_operators, this_machine
from addnorm.tuning.provider import VARIABLE

FILE = "machine.json"
EARLIER = KernelChoices(product="onednn")
"""The kernels of every run before they were measured."""


@config
class Move:
    """A machine to which a run has moved, and the step after which it did."""

    step: int
    machine: Machine


@config
class TrainedOn:
    """The machine and kernels with which a run began, and its later moves to other machines."""

    machine: Machine
    kernels: KernelChoices
    moves: tuple[Move, ...] = ()


TRAINED_ON = TypeAdapter(TrainedOn)


@contextmanager
def kernels_of(folder: Path, console: Console, *, begins: bool = True) -> Generator[None]:
    """Use the kernels that the run in `folder` began with; a new run begins with this machine's.

    With `begins` false another process has begun or resumed it just now, and nothing is written.

    A run is new if it has no checkpoint to resume from. What has changed since it was trained last
    is printed on the `console`: on another processor, or with another version of torch, a resumed
    run is equal to an uninterrupted one up to rounding only.
    Raises `InputError` for a damaged file.
    """
    if not begins:
        began = read_json(folder / FILE, TRAINED_ON, most=2**24)
    elif checkpoints_in(folder / "checkpoints"):
        began = _resumed(folder, console)
    else:
        began = TrainedOn(machine=this_machine(), kernels=choices())
        _write(folder, began)
    load_operators(began.kernels)
    with use_choices(began.kernels):
        yield


def _resumed(folder: Path, console: Console) -> TrainedOn:
    """The machine and kernels of a resumed run; a move to this machine is printed and recorded."""
    file, here = folder / FILE, this_machine()
    if not file.is_file():
        console.out(f"{file}: missing: torch's kernels are used from here on, equal up to rounding")
        began = TrainedOn(machine=here, kernels=EARLIER)
        _write(folder, began)
        return began
    began = read_json(file, TRAINED_ON, most=2**24)
    last = began.moves[-1].machine if began.moves else began.machine
    if last != here:
        for change in _changes(last, here):
            console.out(f"{folder}: {change}: equal up to rounding", highlight=False)
        move = Move(step=_step(folder / "checkpoints"), machine=here)
        times = file.stat()
        _write(folder, replace(began, moves=(*began.moves, move)))
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # a run's time counts from it
    return began


def _step(checkpoints: Path) -> int:
    """The step to resume from: that of the newest intact checkpoint."""
    newest, _ = latest_checkpoint(checkpoints)
    match = re.match(r"step-(\d+)", newest.name) if newest is not None else None
    return int(match[1]) if match else 0


def _write(folder: Path, trained_on: TrainedOn) -> None:
    atomic_write(
        folder / FILE, json.dumps(TRAINED_ON.dump_python(trained_on, mode="json"), indent=1)
    )


def _changes(before: Machine, now: Machine) -> Generator[str]:
    for field in fields(before):  # pyright: ignore[reportArgumentType]
        old, new = getattr(before, field.name), getattr(now, field.name)
        if old != new:
            yield f"{field.name} was {old!r} so far and is {new!r} from here on"


def given_table(given: KernelChoices) -> Table:
    """A table of the kernels that the user has chosen for this machine."""
    caption = f"given by {VARIABLE}={os.environ.get(VARIABLE)}, so nothing is measured"
    table = Table("kernels", "chosen", title=_title(this_machine()), caption=caption)
    _add_choices(table, given)
    return table


def machine_table(calibration: Calibration) -> Table:
    """A table of a machine's kernels, with the measured milliseconds."""
    table = Table(
        "measured",
        "milliseconds",
        title=_title(calibration.machine),
        caption=f"measured on {calibration.date} in {calibration.seconds:g} s, "
        "again by `addnorm calibrate`"
        + ("; other work disturbed it: the defaults stand" if calibration.disturbed else ""),
    )
    for what, times in calibration.figures.items():
        table.add_row(what, ", ".join(f"{name} {ms:g}" for name, ms in times.items()))
    table.add_section()
    _add_choices(table, calibration.choices)
    return table


def _title(machine: Machine) -> str:
    return f"{machine.processor} · {machine.threads} threads · torch {machine.torch}"


def _add_choices(table: Table, chosen: KernelChoices) -> None:
    for field in fields(chosen):  # pyright: ignore[reportArgumentType]
        table.add_row(field.name, str(getattr(chosen, field.name)))
