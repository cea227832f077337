"""Starting the processes that train together, by torchrun's own launcher, and joining them."""

import logging
import os
import signal
import socket
import sys
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from addnorm.training.interruptions import to_standard_error
from addnorm.training.parallel.plan import (
    EXPLAINED,
    OUR_RUN,
    ParallelTrainingConfig,
    check_processes,
    launched,
)
from addnorm.training.parallel.world import OneProcess, World

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals that the launcher handles, and leaves handled."""


@dataclass(frozen=True)
class Ended:
    """How the processes ended: the exit status, and the first process that failed, if any.

    `number` is the signal that ended it, or 0 if it ended by itself.
    """

    status: int
    rank: int | None = None
    pid: int = 0
    number: int = 0

    def __str__(self) -> str:
        how = f"was ended by {signal.Signals(self.number).name}" if self.number else "failed"
        return f"rank {self.rank} (process {self.pid} on {socket.gethostname()}) {how}"


def started(words: Sequence[str], processes: int) -> Ended:
    """Run `addnorm` with these arguments in several processes of this machine, until all end.

    When one fails, the launcher ends the others. Each has its share of the processor's threads,
    unless `$OMP_NUM_THREADS` says otherwise.
    """
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in logging.root.manager.loggerDict:
        if name.startswith("torch.distributed.elastic"):  # the command itself says what matters
            logging.getLogger(name).setLevel(logging.CRITICAL)
    threads = max(1, (os.cpu_count() or 1) // processes)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        logs_specs=DefaultLogsSpecs(os.devnull),  # else it leaves a folder of temporary files
        run_id=f"{OUR_RUN}{uuid.uuid4().hex}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
    )
    before = {number: signal.getsignal(number) for number in HANDLED}
    try:
        elastic_launch(config, sys.executable)("-m", "addnorm", *words)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        if failure.exitcode == EXPLAINED:
            return Ended(1)
        number = max(0, -failure.exitcode)
        return Ended(1 if number else failure.exitcode, rank, failure.pid, number)
    except SignalException:
        return Ended(130)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Ended(0)


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
