"""Statistics of comparisons: paired differences, intervals, corrections, and numbers of seeds.

Variants are compared with the same seeds and the same data, so their differences are paired: the
effect of a seed on both cancels out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from addnorm.errors import optional
from addnorm.training.loggers import LOG, read_journal

LEVEL = 0.95
"""The confidence of every interval."""

POWER = 0.8
"""The probability with which `seeds_to_decide` seeds would find a difference of this size."""

MOST_SEEDS = 10_000
"""The most seeds that `seeds_to_decide` returns."""

Verdict = Literal["higher", "lower", "equal", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate, with an interval that contains the true value in 95 of 100 studies."""

    mean: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The difference between a variant and the first one in a metric, with the same seeds.

    `effect` is the mean difference in units of its standard deviation (Cohen's d of paired samples;
    Cohen 1988, §2.3.5), infinite for a difference that does not vary. `p` is that of the paired
    t-test (Student 1908), `adjusted` the same corrected for all comparisons of a study.
    """

    interval: Interval
    effect: float
    p: float
    adjusted: float
    verdict: Verdict
    needed: int | None
    """The seeds that would decide it, if this is the true difference; None if none would."""


def _stats() -> Any:
    """Import scipy's module of distributions. Raises `InputError` if it is not installed."""
    return optional("scipy.stats", "lab", "a comparison")


def mean_interval(values: Sequence[float], least_spread: float = 0.0) -> Interval:
    """The mean with its 95 % interval, `mean ± t(n - 1) · s / √n`; infinite for a single value.

    `s` is at least `least_spread`. Raises `ValueError` if there are no values.
    """
    if not values:
        raise ValueError("no values, no mean")
    mean, n = float(np.mean(values)), len(values)
    if n == 1:
        return Interval(mean=mean, low=-math.inf, high=math.inf, n=1)
    error = max(float(np.std(values, ddof=1)), least_spread) / math.sqrt(n)
    reach = float(_stats().t.ppf((1 + LEVEL) / 2, n - 1)) * error
    return Interval(mean=mean, low=mean - reach, high=mean + reach, n=n)


def percentage_interval(values: Sequence[float]) -> Interval:
    """The mean of percentages with its 95 % interval, which stays within 0 and 100.

    It is Student's interval of `arcsin √(p / 100)`, which varies alike for all `p` (Bartlett 1936),
    with its ends turned back into percentages; infinite for a single value. Raises `ValueError` if
    there are no values.
    """
    angles = np.arcsin(np.sqrt(np.clip(values, 0.0, 100.0) / 100))
    of_angles, mean = mean_interval(list(angles)), float(np.mean(values))
    if of_angles.n == 1:
        return Interval(mean=mean, low=-math.inf, high=math.inf, n=1)
    ends = np.clip([of_angles.low, of_angles.high], 0.0, math.pi / 2)
    low, high = (100 * np.sin(ends) ** 2).tolist()
    return Interval(mean=mean, low=min(low, mean), high=max(high, mean), n=of_angles.n)


def differences(
    pairs: Sequence[tuple[Sequence[float], Sequence[float]]],
    *,
    resolution: float = 0.0,
    others: int = 0,
    largest: float = math.inf,
) -> list[Difference]:
    """Compare the values of each variant with those of the first, seed by seed.

    A pair is the values of a variant and those of the first with the same seeds. All pairs are one
    family of tests, corrected by Holm, together with `others` that are not shown. Scores that are
    multiples of a `resolution`, such as the accuracy on 20 examples, are assumed to vary by at
    least that: equal differences of few seeds are not certain. Intervals end at the `largest`
    difference that there can be, 100 for percentages. Raises `ValueError` for values of
    different lengths, or none.
    """
    all_of = [[a - b for a, b in zip(ours, first, strict=True)] for ours, first in pairs]
    ps = [_p(values, resolution) for values in all_of]
    n_tests = len(ps) + others
    return [
        _difference(values, p, adjusted, n_tests, resolution, largest)
        for values, p, adjusted in zip(all_of, ps, holm([*ps, *[1.0] * others]), strict=False)
    ]


def _p(values: Sequence[float], resolution: float) -> float:
    """Return the p-value of a t-test that the mean is zero; 1 if it cannot be tested.

    Equal differences of scores of unknown resolution have the p-value of the sign test.
    """
    n = len(values)
    if n < 2 or not any(values) or not np.all(np.isfinite(values)):
        return 1.0
    spread = max(_spread(values), resolution)
    if not spread:
        return 2.0 ** (1 - n)
    return float(2 * _stats().t.sf(abs(float(np.mean(values))) / (spread / math.sqrt(n)), n - 1))


def _difference(
    values: Sequence[float],
    p: float,
    adjusted: float,
    n_tests: int,
    resolution: float,
    largest: float,
) -> Difference:
    interval = mean_interval(values, resolution)
    if len(values) > 1:
        low, high = max(interval.low, -largest), min(interval.high, largest)
        interval = replace(interval, low=low, high=high)
    if len(values) > 1 and not any(values):
        verdict: Verdict = "equal"
    elif adjusted < 1 - LEVEL:
        verdict = "higher" if interval.mean > 0 else "lower"
    else:
        verdict = "undecided"
    return Difference(
        interval=interval,
        effect=effect_size(values),
        p=p,
        adjusted=adjusted,
        verdict=verdict,
        needed=seeds_to_decide(values, n_tests) if verdict == "undecided" else None,
    )


def p_value(p: float) -> str:
    """A p-value as text for the end of a sentence: `= 0.012`, or `< 0.001`."""
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def signed(value: float) -> str:
    """A number with its sign and four digits."""
    return f"{value:+.4g}".replace("-", "−")


def with_reach(interval: Interval) -> str:
    """A mean with half the width of its interval, `1.62 ± 0.03`, or with unequal ends.

    Such as `98.2 (95.1 … 99.6)`.
    """
    reach, below = interval.high - interval.mean, interval.mean - interval.low
    if math.isfinite(reach) and not math.isclose(reach, below, rel_tol=1e-6, abs_tol=1e-12):
        return f"{interval.mean:.5g} ({interval.low:.4g} … {interval.high:.4g})"
    return f"{interval.mean:.5g}" + (f" ± {reach:.2g}" if math.isfinite(reach) else "")


def bounds(interval: Interval) -> str:
    """The ends of an interval; a dash for an infinite one."""
    low, high = interval.low, interval.high
    return "–" if math.isinf(low) else f"{signed(low)} … {signed(high)}"


def effect_size(values: Sequence[float]) -> float:
    """The mean in units of the standard deviation; NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    mean, spread = float(np.mean(values)), _spread(values)
    if spread:
        return mean / spread
    return math.copysign(math.inf, mean) if mean else 0.0


def _spread(values: Sequence[float]) -> float:
    """The standard deviation; zero for values that differ only by rounding."""
    if np.ptp(values) <= 1e-12 * np.max(np.abs(values)):
        return 0.0
    return float(np.std(values, ddof=1))


def holm(ps: Sequence[float]) -> list[float]:
    """The p-values corrected so that any test errs in at most 5 of 100 studies (Holm 1979).

    `max over smaller p of min(1, (m - rank) p)`, rank from zero; scipy does not have it.
    """
    adjusted, largest = [1.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        adjusted[index] = largest
    return adjusted


def seeds_to_decide(values: Sequence[float], n_tests: int = 1) -> int | None:
    """The smallest number of seeds whose t-test detects this effect in 80 of 100 studies.

    By the noncentral t distribution with `effect · √n`, at 5 % divided by the number of tests. None
    if the effect is zero or unknown, or more than 10,000 seeds are needed.
    """
    effect = abs(effect_size(values))
    if not 0 < effect < math.inf:
        return None
    few, enough = 1, 2
    while power_of(effect, enough, n_tests) < POWER:  # upwards: far above, the tail is not computed
        few, enough = enough, 2 * enough
        if few > MOST_SEEDS:
            return None
    while enough - few > 1:
        n = (few + enough) // 2
        few, enough = (few, n) if power_of(effect, n, n_tests) >= POWER else (n, enough)
    return enough if enough <= MOST_SEEDS else None


def power_of(effect: float, n: int, n_tests: int = 1) -> float:
    """The probability that a t-test with `n` seeds detects a true effect of this size."""
    limit = _stats().t.ppf(1 - (1 - LEVEL) / 2 / n_tests, n - 1)
    shift = effect * math.sqrt(n)
    return float(sum(_stats().nct.sf(limit, n - 1, sign * shift) for sign in (1, -1)))


def bootstrap_interval(
    ours: NDArray[np.float64],
    first: NDArray[np.float64],
    weights: NDArray[np.float64] | None = None,
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """The difference of two means over the same examples, with a bootstrap interval.

    Examples are drawn again with replacement, the same for both sides (Efron & Tibshirani 1993,
    §13.3, percentiles). With `weights`, such as tokens, the means are weighted by them. Raises
    `ValueError` for different numbers of examples, or none.
    """
    if ours.shape != first.shape or not ours.size:
        raise ValueError(f"{ours.size} examples cannot be paired with {first.size}")
    weights = np.ones_like(ours) if weights is None else weights
    difference = ours - first
    mean = float(np.average(difference, weights=weights))
    if ours.size == 1:
        return Interval(mean=mean, low=-math.inf, high=math.inf, n=1)

    def weighted(index: NDArray[np.int64], axis: int = -1) -> NDArray[np.float64]:
        drawn = weights[index]
        return (difference[index] * drawn).sum(axis) / drawn.sum(axis)

    interval = (
        _stats()
        .bootstrap(
            (np.arange(ours.size),),
            weighted,
            n_resamples=resamples,
            batch=max(1, 2**22 // ours.size),
            confidence_level=LEVEL,
            method="percentile",
            rng=np.random.default_rng(seed),
        )
        .confidence_interval
    )
    return Interval(mean=mean, low=float(interval.low), high=float(interval.high), n=ours.size)


LEAST_FALL = 0.1
"""The least fall of the loss, as a share of that of the first step, which is about chance."""


def fall_of_loss(folder: Path) -> tuple[float, float] | None:
    """The training loss at a run's first step, and the mean over its last tenth of steps.

    None for a run without at least two steps, or whose loss may be negative.
    """
    losses = [line["loss"] for line in read_journal(folder / LOG).lines if "loss" in line]
    if len(losses) < 2 or losses[0] <= 0:
        return None
    last = losses[-max(1, len(losses) // 10) :]
    return losses[0], sum(last) / len(last)


def barely_learnt(folder: Path) -> tuple[float, float] | None:
    """Both losses if a run has barely learnt; None otherwise."""
    fall = fall_of_loss(folder)
    return fall if fall is not None and fall[1] > (1 - LEAST_FALL) * fall[0] else None
