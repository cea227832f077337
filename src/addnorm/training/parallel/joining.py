"""Joining the processes that `torchrun` has started."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

from addnorm.training.interruptions import to_standard_error
from addnorm.training.parallel.plan import ParallelTrainingConfig, check_processes, launched
from addnorm.training.parallel.world import OneProcess, World


@contextmanager
def joined(
    plan: ParallelTrainingConfig,
    say: Callable[[str], None] = to_standard_error,
    *,
    patience: float | None = None,
    hint: str = "",
) -> Generator[World]:
    """The processes that train together by a plan; a single process imports nothing for it.

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

    with connected(say, plan, patience=patience, hint=hint) as world:
        yield world
