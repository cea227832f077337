"""Learning-rate schedules: pure functions from the step to a factor of the peak learning rate.

Steps count from 1 to `total`; every built-in schedule starts with a linear warm-up of `warmup`
steps.
"""

import math
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import Field, NonNegativeInt

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.parts import Family, kind_of

Share = Annotated[float, Field(ge=0.0, le=1.0)]


@config
class ConstantConfig:
    """1 after the warm-up."""

    kind: Literal["constant"] = "constant"
    warmup: NonNegativeInt = 0
    """Steps of linear rise from 0 to the peak rate."""

    def factor(self, step: int, total: int) -> float:
        return _rise(step, self.warmup)


@config
class InverseSquareRootConfig:
    """`min(step / warmup, √(warmup / step))` (Vaswani et al. 2017, §5.3).

    Their `d_model^-½ warmup^-½` is the peak, given here as the learning rate.
    """

    kind: Literal["inverse_sqrt"] = "inverse_sqrt"
    warmup: NonNegativeInt = 4000
    """Steps of linear rise from 0 to the peak rate."""

    def factor(self, step: int, total: int) -> float:
        return min(_rise(step, self.warmup), math.sqrt(max(self.warmup, 1) / max(step, 1)))


@config
class LinearConfig:
    """1 after the warm-up, then linear to `floor` over the last `decay` share of the steps."""

    kind: Literal["linear"] = "linear"
    warmup: NonNegativeInt = 0
    """Steps of linear rise from 0 to the peak rate."""
    decay: Share = 1.0
    """The share of all steps, at the end, over which the rate falls."""
    floor: Share = 0.0
    """The factor at which the fall ends, one step after the last."""

    def factor(self, step: int, total: int) -> float:
        left = _left(step, total, min(self.decay, 1 - self.warmup / max(total, 1)))
        return _rise(step, self.warmup) * (self.floor + (1 - self.floor) * left)


@config
class CosineConfig:
    """After the warm-up, half a cosine from 1 to `floor` (Loshchilov & Hutter 2017, eq. 5)."""

    kind: Literal["cosine"] = "cosine"
    warmup: NonNegativeInt = 0
    """Steps of linear rise from 0 to the peak rate."""
    floor: Share = 0.0
    """The factor at which the fall ends, one step after the last."""

    def factor(self, step: int, total: int) -> float:
        left = _left(step, total, 1 - self.warmup / max(total, 1))
        half = (1 - math.cos(math.pi * left)) / 2
        return _rise(step, self.warmup) * (self.floor + (1 - self.floor) * half)


@config
class WarmupStableDecayConfig:
    """Warm-up, stable at 1, then `1 - √` decay to `floor` over the last `decay` share of the steps.

    Hägele et al. 2024, §3: the square-root shape beats the linear one.
    """

    kind: Literal["wsd"] = "wsd"
    warmup: NonNegativeInt = 0
    """Steps of linear rise from 0 to the peak rate."""
    decay: Share = 0.2
    """The share of all steps, at the end, over which the rate falls."""
    floor: Share = 0.0
    """The factor at which the fall ends, one step after the last."""

    def factor(self, step: int, total: int) -> float:
        left = _left(step, total, self.decay)
        root = 1 - math.sqrt(1 - left)
        return _rise(step, self.warmup) * (self.floor + (1 - self.floor) * root)


@runtime_checkable
class SchedulePart(Protocol):
    """A custom schedule, which gives the factor of the peak learning rate at each step.

    Steps count from 1. The same step must always give the same factor, so that a run can resume.
    """

    def factor(self, step: int, total: int) -> float:
        """A finite, non-negative factor for `step` of `total`."""
        ...


ScheduleConfig = Annotated[
    ConstantConfig
    | InverseSquareRootConfig
    | LinearConfig
    | CosineConfig
    | WarmupStableDecayConfig
    | SchedulePart,
    Family("schedule", SchedulePart, method="factor"),
]
"""Any schedule, built-in or custom."""


def checked_factor(schedule: ScheduleConfig, step: int, total: int) -> float:
    """The factor at a step, checked to be finite and non-negative.

    Raises `InputError` if it is not finite and non-negative.
    """
    factor: Any = schedule.factor(step, total)
    if not (isinstance(factor, int | float) and math.isfinite(factor) and factor >= 0):
        raise InputError(
            f"train.schedule: {kind_of(schedule)} gives {factor!r} at step {step} of {total}: "
            "a factor must be finite and not negative"
        )
    return float(factor)


def _rise(step: int, warmup: int) -> float:
    return min(1.0, step / warmup) if warmup else 1.0


def _left(step: int, total: int, share: float) -> float:
    """The remaining fraction of the final `share` of the steps; 1 before that phase begins."""
    length = max(0.0, share) * total  # a warm-up longer than the run leaves no steps to decay
    return min(1.0, max(0.0, total + 1 - step) / length) if length else 1.0
