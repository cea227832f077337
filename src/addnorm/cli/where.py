"""`--device`, `--dtype`, `--processes` and `--import`: options of commands that open a model."""

import atexit
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from addnorm.cli.main import at_least, failed, words_given
from addnorm.errors import InputError
from addnorm.files import check_model_folder
from addnorm.runs.options import Weights

if TYPE_CHECKING:
    from torch import nn

    from addnorm.runs.run import Run
    from addnorm.training.parallel.pieces import AnyPiece

GROUP = Parameter(name="*", negative="")
"""Marks an argument that is a dictionary of options, each an option of the command."""

Imports = Annotated[
    tuple[str, ...],
    Parameter(
        name="--import",
        negative="",
        show_default=False,
        help="A file or module with parts of your own: `my_parts.py`. May be given again.",
    ),
]
"""The option of all commands that support custom parts."""


def import_named(names: Sequence[str]) -> None:
    """Import the named files and modules. Raises `InputError` if one does not exist."""
    if names:
        from addnorm.runs.recipes.custom_parts import import_parts

        import_parts(names)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a model runs.

    Parameters
    ----------
    device
        `auto` is a GPU where there is one; else `cpu`, `cuda`, `cuda:1` or `mps`.
    dtype
        The type of the weights; by default the one in which they are stored.
    """

    device: str = "auto"
    dtype: Literal["float32", "bfloat16", "float16", "float64"] | None = None

    def open(
        self,
        folder: Path,
        overrides: Mapping[str, str] | None = None,
        weights: Weights | None = None,
    ) -> "Run":
        """Open the run in a folder, on this device and with this dtype."""
        check_model_folder(folder)
        from addnorm.runs.run import Run

        return Run.open(folder, overrides, device=self.device, dtype=self.dtype, weights=weights)


ANYWHERE = Where()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class InProcesses(Where):
    """Where a model runs, and in how many processes.

    Parameters
    ----------
    processes
        Split the model among so many processes of this machine. Each holds a part of the weights,
        and the result is that of one process.
    parallel
        How it is split: `tensor` gives each process a part of every layer, some heads, features and
        tokens of the vocabulary; `pipeline` gives each some layers, which compute in turn.
    """

    processes: Annotated[int | None, Parameter(validator=at_least(1))] = None
    parallel: Literal["tensor", "pipeline"] = "tensor"

    def check_exit(self, rule: str | None) -> None:
        """Raise `InputError` for early exits from layers of other processes."""
        if rule is not None and self.processes not in (None, 1) and self.parallel == "pipeline":
            raise InputError(
                "early exits leave from layers that other processes have: leave --exit out, or "
                "give --parallel tensor"
            )

    def started(self, folder: Path) -> int | None:
        """Start this command in its processes and return their exit status; None in each of them.

        Of these the first one speaks. Raises `InputError` if the heads of the model in `folder`, or
        its layers, cannot be divided among so many.
        """
        if self.processes in (None, 1):
            return None
        from addnorm.training.parallel.launch import started
        from addnorm.training.parallel.plan import launched

        here = launched()
        if self.processes == here.processes:
            if here.rank:
                sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
            return None
        check_model_folder(folder)
        from addnorm.runs.files.folder import read_settings
        from addnorm.runs.recipes.parallel_plan import check_heads, check_layers

        check = check_heads if self.parallel == "tensor" else check_layers
        check(read_settings(folder).recipe.model, self.processes)
        ended = started(words_given.get(), self.processes)
        return failed(str(ended), ended.status) if ended.number else ended.status

    def open(
        self,
        folder: Path,
        overrides: Mapping[str, str] | None = None,
        weights: Weights | None = None,
    ) -> "Run":
        """Open the run in a folder; of several processes, each opens its part."""
        if self.processes in (None, 1):
            return super().open(folder, overrides, weights)
        check_model_folder(folder)
        from addnorm.runs.opening import open_model
        from addnorm.runs.run import Run
        from addnorm.runs.trained_model import device_named, dtype_named
        from addnorm.training.parallel.inference_stages import split_layers
        from addnorm.training.parallel.plan import ParallelTrainingConfig
        from addnorm.training.parallel.processes import connected
        from addnorm.training.parallel.tensor import split_model

        device = device_named(self.device)
        if weights is not None or device.type != "cpu":
            raise InputError(
                "a model is split over processes on CPUs so far, with its weights as they are "
                "stored: give --device cpu, and leave --weights out, or --processes"
            )
        processes = ExitStack()
        plan = replace(ParallelTrainingConfig(), **{self.parallel: self.processes})
        world = processes.enter_context(connected(print, plan))
        atexit.register(processes.close)

        def split(model: "nn.Module") -> "Mapping[str, AnyPiece]":
            if self.parallel == "pipeline":
                return split_layers(model, world.pipeline)
            return split_model(model, world.tensor).parameters

        dtype = None if self.dtype is None else dtype_named(self.dtype)
        return Run.of(open_model(folder, overrides, dtype=dtype, split=split))

    @property
    def leads(self) -> bool:
        """Whether this process writes the files of the command."""
        from addnorm.training.parallel.plan import launched

        return self.processes in (None, 1) or launched().rank == 0


ALONE = InProcesses()
"""One process, on any device."""
