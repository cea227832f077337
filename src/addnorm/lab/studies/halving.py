"""Successive halving: training stops early for variants that are clearly worse.

Jamieson & Talwalkar 2016, with a rule that keeps the statistics honest: a variant is dropped only
when its paired difference to the best so far is decided at that step, never by rank alone. The best
is picked from the same figures, so any two variants may be compared, at each of two steps: Holm's
correction counts all of these tests, and equal variants are dropped in at most 5 of 100 studies.
Only cells that paused at that step are compared: the figures of one that has ended are of another
step, and perhaps of another split.
"""

import math
from collections.abc import Callable, Mapping

from addnorm.errors import InputError
from addnorm.lab.executor import Executor, Watch
from addnorm.lab.statistics import differences, p_value
from addnorm.lab.studies.cell import Figures
from addnorm.lab.studies.study import Study
from addnorm.lab.studies.summary import paired

RUNGS = (0.25, 0.5)
"""The shares of the steps after which variants may be dropped."""


def halve(study: Study, make: Callable[[], Executor], at_once: int, watch: Watch) -> dict[int, str]:
    """Train all variants to each rung, dropping clearly worse ones; return the reasons by variant.

    The first variant, with which all are compared, is never dropped. Raises `InputError`, before
    anything is trained, for a recipe with a number of epochs instead of steps.
    """
    dropped: dict[int, str] = {}
    for share in RUNGS:
        cells = [cell for cell in study.cells if cell.variant not in dropped]
        steps = {cell.recipe.train.steps for cell in cells}
        if None in steps:
            raise InputError(
                "`halving`: the number of steps does not follow from train.epochs: give train.steps"
            )
        until = max(1, int(share * max(step for step in steps if step is not None)))
        figures = study.run(make, at_once, cells=cells, until=until, watch=watch)
        dropped |= clearly_worse(study, figures, until)
    return dropped


def clearly_worse(
    study: Study, figures: Mapping[int, Mapping[int, Figures]], until: int
) -> dict[int, str]:
    """The variants that are significantly worse than the best at this step, with reasons."""
    scores = {
        index: {
            seed: cell.scores[study.metric]
            for seed, cell in cells.items()
            if study.metric in cell.scores and (cell.state, cell.steps) == ("paused", until)
        }
        for index, cells in figures.items()
    }
    scores = {index: values for index, values in scores.items() if values}
    if not scores:
        return {}
    sign = 1 if study.lower_is_better else -1
    means = {index: sign * sum(v.values()) / len(v) for index, v in scores.items()}
    best = min(means, key=means.__getitem__)
    others = [i for i in scores if i not in (0, best) and scores[i].keys() & scores[best].keys()]
    pairs = [paired(scores[i], scores[best]) for i in others]
    tests = len(RUNGS) * math.comb(len(scores), 2)
    worse = "higher" if study.lower_is_better else "lower"
    return {
        index: f"{study.metric} {tested.interval.mean:+.4g} after {until} steps compared with "
        f"{study.variants[best].name}, p {p_value(tested.adjusted)}"
        for index, tested in zip(others, differences(pairs, others=tests - len(pairs)), strict=True)
        if tested.verdict == worse
    }
