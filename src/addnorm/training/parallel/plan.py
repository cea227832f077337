"""`[parallel]`: how training is split over processes, and the rank of this one."""

import os
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import PositiveInt

from addnorm.config import config
from addnorm.errors import InputError

OTHERS = ("context", "tensor", "pipeline")
"""The numbers of a plan besides `data`."""

Schedule = Literal["1f1b", "gpipe", "interleaved"]
"""The order of micro-batches in a pipeline."""


@config
class ParallelTrainingConfig:
    """How training is split over processes: rows and positions of each batch, weights, and layers.

    The numbers multiply to the number of processes, which `addnorm train --processes N` or
    `torchrun` starts. Each step has the rows, the loss and the gradient of one process.
    """

    data: PositiveInt = 1
    """Processes among which the rows of each batch are split."""
    shard: bool = False
    """Also split weights, gradients and the optimiser's state among them and those of `context`, so
    that each process holds a part (Rajbhandari et al. 2020, stage 3).
    """

    context: PositiveInt = 1
    """Processes among which the positions of each text are split; keys and values are gathered in
    each layer (Llama Team 2024, §3.3.2).
    """
    tensor: PositiveInt = 1
    """Processes among which each layer is split: heads of attention, features of feed-forward
    layers, and the vocabulary (Shoeybi et al. 2019, §3).
    """

    pipeline: PositiveInt = 1
    """Processes among which the layers are split, each with consecutive ones; the
    `train.accumulate` batches of a step go through them one after another (Huang et al. 2019).
    """
    schedule: Schedule = "1f1b"
    """The order of these batches: `1f1b` begins backward passes as soon as it can, `gpipe` after
    all forward passes; with `interleaved` each process has two groups of layers, which leaves less
    time idle and sends twice as much (Narayanan et al. 2021, §2.2).
    """

    @property
    def processes(self) -> int:
        """The number of processes of this plan."""
        return self.data * self.context * self.tensor * self.pipeline

    @property
    def stages(self) -> int:
        """The number of groups of layers."""
        return self.pipeline * (2 if self.schedule == "interleaved" and self.pipeline > 1 else 1)

    def idle(self, n: int) -> float:
        """The idle share of each process in a step of n batches: `(p - 1) / (v n + p - 1)`.

        With p processes and v groups of layers in each (Narayanan et al. 2021, §2.2).
        """
        waiting = self.pipeline - 1
        return waiting / (self.stages // self.pipeline * n + waiting)

    @property
    def splits_weights(self) -> bool:
        """Whether each process holds a part of the weights and of the optimiser's state."""
        return self.shard or self.tensor > 1 or self.pipeline > 1

    def __str__(self) -> str:
        return self.compared_with(self)

    def compared_with(self, other: "ParallelTrainingConfig") -> str:
        """The sizes of this plan as text, without those that are 1 in both plans."""
        sizes = {name: (getattr(self, name), getattr(other, name)) for name in OTHERS}
        given = [f"{name} = {size}" for name, (size, its) in sizes.items() if max(size, its) > 1]
        return ", ".join([f"parallel.data = {self.data}", *given])


OUR_RUN = "addnorm-"
"""How torchrun's name of a run begins where `--processes` started it, and not its own command."""


EXPLAINED = 5
"""The status of a process that `--processes` started, and whose end another has explained."""


@dataclass(frozen=True)
class Launched:
    """The rank of this process among those that `torchrun` has started, and their number."""

    rank: int = 0
    processes: int = 1
    by_us: bool = False
    """Whether `--processes` started them."""


def launched() -> Launched:
    """This process as `torchrun` started it; else a single process."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    if run is None:
        return Launched()
    rank, processes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return Launched(rank, processes, by_us=run.startswith(OUR_RUN))


def share_of_machine(plan: ParallelTrainingConfig) -> float:
    """The number of whole models that all pieces on this machine add up to."""
    rows = plan.data * plan.context if plan.shard else 1
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return here / (rows * plan.tensor * plan.pipeline)


def check_processes(plan: ParallelTrainingConfig, processes: int) -> None:
    """Raise `InputError` unless the plan is for this number of processes."""
    if plan.processes != processes:
        nearest = _nearest(plan, processes)
        raise InputError(
            f"{plan} is a plan for {plan.processes} process{'es' if plan.processes > 1 else ''}, "
            f"and there {'are' if processes > 1 else 'is'} {processes}: give `processes = "
            f"{plan.processes}`, or `{nearest.compared_with(plan)}`"
        )


def _nearest(plan: ParallelTrainingConfig, processes: int) -> ParallelTrainingConfig:
    """The plan for this number of processes that keeps those splits that divide it."""
    sizes, left = dict[str, int](), processes
    for name in reversed(OTHERS):
        size = getattr(plan, name)
        sizes[name] = size if left % size == 0 else 1
        left //= sizes[name]
    return replace(ParallelTrainingConfig(), data=left, **sizes)
