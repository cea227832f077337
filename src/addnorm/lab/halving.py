"""Successive halving: variants that are clearly worse part of the way are not trained further.

Jamieson & Talwalkar 2016, with a rule that keeps the statistics honest: a variant is dropped only
when its paired difference to the best so far is decided at that step, never by rank alone. The best
is picked by the same figures, so any two variants may be what is compared, at each of two looks:
Holm's correction counts all of these tests, and of equal variants any is dropped in at most 5 of
100 studies. Only cells that paused at that very step are compared: one that had ended before has
its last figures, of another step and perhaps of another split.
"""

import math
from collections.abc import Callable, Mapping

from addnorm.errors import InputError
from addnorm.lab.cell import Figures
from addnorm.lab.executor import Executor
from addnorm.lab.statistics import differences, p_value
from addnorm.lab.studies import Study, Watch

RUNGS = (0.25, 0.5)
"""The shares of the steps after which variants may be dropped."""


def halve(study: Study, make: Callable[[], Executor], at_once: int, watch: Watch) -> dict[int, str]:
    """Train all variants to each rung and drop the clearly worse; return the reasons by variant.

    The first variant stays, with which all are compared. Raises `InputError`, before anything is
    trained, for a recipe that says its epochs and not its steps.
    """
    dropped: dict[int, str] = {}
    for share in RUNGS:
        cells = [cell for cell in study.cells if cell.variant not in dropped]
        steps = {cell.recipe.train.steps for cell in cells}
        if None in steps:
            raise InputError(
                "`halving`: train.epochs does not say how many steps: give train.steps"
            )
        until = max(1, int(share * max(step for step in steps if step is not None)))
        found = study.run(make, at_once, cells=cells, until=until, watch=watch)
        dropped |= clearly_worse(study, found, until)
    return dropped


def clearly_worse(
    study: Study, found: Mapping[int, Mapping[int, Figures]], until: int
) -> dict[int, str]:
    """The variants whose difference to the best at this step is decided, with the reason."""
    scores = {
        index: {
            seed: one.scores[study.metric]
            for seed, one in cells.items()
            if study.metric in one.scores and (one.state, one.steps) == ("paused", until)
        }
        for index, cells in found.items()
    }
    scores = {index: values for index, values in scores.items() if values}
    if not scores:
        return {}
    sign = 1 if study.lower_is_better else -1
    means = {index: sign * sum(v.values()) / len(v) for index, v in scores.items()}
    best = min(means, key=means.__getitem__)
    others = [i for i in scores if i not in (0, best) and scores[i].keys() & scores[best].keys()]
    pairs = [_paired(scores[i], scores[best]) for i in others]
    tests = len(RUNGS) * math.comb(len(scores), 2)
    worse = "higher" if study.lower_is_better else "lower"
    return {
        index: f"{study.metric} {one.interval.mean:+.4g} after {until} steps beside "
        f"{study.variants[best].name}, p {p_value(one.adjusted)}"
        for index, one in zip(others, differences(pairs, others=tests - len(pairs)), strict=True)
        if one.verdict == worse
    }


def _paired(
    ours: Mapping[int, float], best: Mapping[int, float]
) -> tuple[list[float], list[float]]:
    common = [seed for seed in best if seed in ours]
    return [ours[seed] for seed in common], [best[seed] for seed in common]
