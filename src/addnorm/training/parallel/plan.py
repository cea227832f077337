"""`[parallel]`: how training is split over processes, and joining those that `torchrun` started."""

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import PositiveInt

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.training.interruptions import to_standard_error
from addnorm.training.parallel.world import OneProcess, World


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

    @property
    def processes(self) -> int:
        """The number of processes of this plan."""
        return self.data * self.context * self.tensor

    def __str__(self) -> str:
        others = {"context": self.context, "tensor": self.tensor}
        given = [f"{name} = {n}" for name, n in others.items() if n > 1]
        return ", ".join([f"parallel.data = {self.data}", *given])


@dataclass(frozen=True)
class Launched:
    """This process among those that `torchrun` has started: its number, and how many there are."""

    rank: int = 0
    processes: int = 1


def launched() -> Launched:
    """This process as `torchrun` has started it; the only one if it was started otherwise."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Launched()
    return Launched(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def check_processes(plan: ParallelTrainingConfig, processes: int) -> None:
    """Raise `InputError` if a plan is for another number of processes than there are."""
    if plan.processes != processes:
        nearest = _nearest(plan, processes)
        raise InputError(
            f"{plan} is a plan for {plan.processes} process{'es' if plan.processes > 1 else ''}, "
            f"and there {'are' if processes > 1 else 'is'} {processes}: give `processes = "
            f"{plan.processes}`, or `{nearest}`"
        )


def _nearest(plan: ParallelTrainingConfig, processes: int) -> ParallelTrainingConfig:
    """The plan for so many processes that splits layers and texts alike, where that divides."""
    tensor = plan.tensor if processes % plan.tensor == 0 else 1
    left = processes // tensor
    context = plan.context if left % plan.context == 0 else 1
    return ParallelTrainingConfig(data=left // context, context=context, tensor=tensor)


@contextmanager
def joined(
    plan: ParallelTrainingConfig,
    say: Callable[[str], None] = to_standard_error,
    *,
    patience: float | None = None,
    hint: str = "",
) -> Generator[World]:
    """The processes that train together by a plan; one alone imports nothing for it.

    With `patience`, one that does nothing for so many seconds ends all; `hint` ends their messages.
    Raises `InputError` if the plan is for another number of processes, and `RankLostError` if one
    of them ends.
    """
    here = launched()
    check_processes(plan, here.processes)
    if here.processes == 1:
        yield OneProcess(say)
        return
    from addnorm.training.parallel.processes import connected

    with connected(
        say,
        shard=plan.shard,
        context=plan.context,
        tensor=plan.tensor,
        patience=patience,
        hint=hint,
    ) as world:
        yield world
