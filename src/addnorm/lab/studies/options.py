"""The options of a study, shared by `addnorm ablate` and `addnorm.lab.study`.

The command line reads them before anything heavy is imported, so this file imports nothing of it.
"""

from dataclasses import dataclass
from typing import Literal

Match = Literal["parameters", "flops"]


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """How variants are compared, and where and how long they are trained.

    Parameters
    ----------
    seeds
        How many seeds each variant has: that of the recipe, and the next ones.
    metric
        The score that decides; by default the one by which the recipe selects its best weights.
    match
        Keep all variants within 2 % of the first, in parameters or in operations a token.
    match_by
        The field that is changed for it.
    question
        The title of the report.
    budget
        A time such as 30m or 2h: as many seeds as fit, judged by a few measured steps.
    halving
        Drop variants that are clearly worse after a quarter or half of the steps.
    processes
        How many are trained at once; by default the cores divided by the threads.
    threads
        The threads that each is trained with, on which its last bits depend.
    scheduler
        The address of a Dask scheduler, such as tcp://host:8786, whose workers train instead.
    """

    seeds: int = 3
    metric: str | None = None
    match: Match | None = None
    match_by: str = "model.feedforward.d_ff"
    question: str = ""
    budget: str | None = None
    halving: bool = False
    processes: int | None = None
    threads: int = 1
    scheduler: str | None = None


DEFAULTS = StudyOptions()
