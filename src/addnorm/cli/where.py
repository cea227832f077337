"""`--device`, `--dtype`, `--processes` and `--import`: options of commands that open a model."""

import os
import sys
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from addnorm.cli.main import at_least, failed, lasting_imports, words_given
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


def working(what: str) -> AbstractContextManager[object]:
    """In this context, show what a command is doing if it takes more than a second or two."""
    from addnorm.cli.terminal import console
    from addnorm.long_work import long_work

    return long_work(console, what)


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
        with working("opening the model"):
            with lasting_imports():
                from addnorm.runs.run import Run

            device, dtype = self.device, self.dtype
            return Run.open(folder, overrides, device=device, dtype=dtype, weights=weights)


ANYWHERE = Where()

ON_CPU = Where(device="cpu")
"""For commands that write the model again."""


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
        """Raise `InputError` for early exit if processes share the layers."""
        if rule is not None and self.processes not in (None, 1) and self.parallel == "pipeline":
            raise InputError(
                "early exit needs all layers in each process: leave --exit out, or "
                "give --parallel tensor"
            )

    def started(self, folder: Path, weights: Weights | None = None) -> int | None:
        """Start this command in several processes, and return the exit status; None within them.

        Of these the first one speaks. Raises `InputError` if the heads of the model in `folder`, or
        its layers, cannot be divided among so many, or for weights and devices that are not split.
        """
        if self.processes in (None, 1) and "TORCHELASTIC_RUN_ID" not in os.environ:
            return None  # torchrun has not started this process
        from addnorm.training.parallel.plan import launched

        here = launched()
        if here.rank:
            _only_faults_are_seen()
        if here.processes not in (1, self.processes):
            raise InputError(
                f"torchrun has started {here.processes} processes: give --processes "
                f"{here.processes}, or start one"
            )
        if self.processes in (None, 1):
            return None
        check_model_folder(folder)
        from addnorm.runs.files.folder import read_settings
        from addnorm.runs.recipes.parallel_plan import check_heads, check_layers
        from addnorm.runs.trained_model import device_named
        from addnorm.training.parallel.launch import started

        if weights is not None or device_named(self.device).type != "cpu":
            raise InputError(
                "a model is split over processes on CPUs so far, with its weights as they are "
                "stored: give --device cpu, and leave --weights out, or --processes"
            )
        if self.processes == here.processes:
            return None
        check = check_heads if self.parallel == "tensor" else check_layers
        check(read_settings(folder).recipe.model, self.processes)
        ended = started(words_given.get(), self.processes)
        explained = not ended.number and not ended.rank  # by the first process itself
        return ended.status if explained else failed(str(ended), ended.status)

    @contextmanager
    def opened(
        self,
        folder: Path,
        overrides: Mapping[str, str] | None = None,
        weights: Weights | None = None,
    ) -> "Generator[Run]":
        """The run in a folder, of which each of several processes has a part.

        What is wrong with the input all find, and the first one says it, which ends all. Raises
        `RankLostError` if one of them ends.
        """
        if self.processes in (None, 1):
            yield self.open(folder, overrides, weights)
            return
        check_model_folder(folder)
        from addnorm.runs.opening import open_model
        from addnorm.runs.run import Run
        from addnorm.runs.trained_model import dtype_named
        from addnorm.training.parallel.inference_stages import split_layers
        from addnorm.training.parallel.members import ended
        from addnorm.training.parallel.plan import ParallelTrainingConfig
        from addnorm.training.parallel.processes import connected
        from addnorm.training.parallel.tensor import split_model

        plan = replace(ParallelTrainingConfig(), **{self.parallel: self.processes})
        with connected(print, plan) as world:

            def split(model: "nn.Module") -> "Mapping[str, AnyPiece]":
                if self.parallel == "pipeline":
                    return split_layers(model, world.pipeline)
                return split_model(model, world.tensor).parameters

            dtype = None if self.dtype is None else dtype_named(self.dtype)
            try:
                with working("opening the model"):
                    opened = Run.of(open_model(folder, overrides, dtype=dtype, split=split))
                yield opened
            except InputError:
                if not world.leads:
                    ended(world.members[:1])
                raise

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes the command's files."""
        from addnorm.training.parallel.plan import launched

        return self.processes in (None, 1) or launched().rank == 0


ALONE = InProcesses()
"""One process, on any device."""


def _only_faults_are_seen() -> None:
    """Silence this process, since another one reports; only our own errors are printed."""
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.excepthook = lambda *error: traceback.print_exception(*error, file=sys.__stderr__)
