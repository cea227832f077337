"""The scaling of a series' values, and its time step, computed from the training part alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.data.times import Interval
from addnorm.errors import InputError


@dataclass(frozen=True)
class Scaling:
    """`(x - mean) / deviation` for each variable of a series, and back to units."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    interval: Interval | None = None
    """The time from one step to the next; None if it is unknown."""

    @classmethod
    def standard(cls, values: Float[Tensor, "variables time"]) -> "Scaling":
        """Compute each variable's mean and biased deviation in float64, ignoring gaps.

        A variable that is constant or always missing keeps its scale.
        """
        mean, deviation = list[float](), list[float]()
        for row in values.double().numpy():
            numbers = row[~np.isnan(row)]
            mean.append(float(numbers.mean()) if len(numbers) else 0.0)
            # The deviation of a constant is not zero where its mean is rounded.
            changes = len(numbers) > 0 and numbers.min() < numbers.max()
            deviation.append(float(numbers.std()) if changes else 1.0)
        return cls(tuple(mean), tuple(deviation))

    @classmethod
    def none(cls, variables: int) -> "Scaling":
        """A scaling that leaves every variable in its units."""
        return cls((0.0,) * variables, (1.0,) * variables)

    def scaled(
        self, values: Float[Tensor, "*batch variables time"]
    ) -> Float[Tensor, "*batch variables time"]:
        """Scale values for a model: computed in float64, returned in float32."""
        return ((values.double() - _column(self.mean)) / _column(self.deviation)).float()

    def in_units(
        self, values: Float[Tensor, "*batch variables time"]
    ) -> Float[Tensor, "*batch variables time"]:
        """Convert a model's output back to units, in float64."""
        return values.double() * _column(self.deviation) + _column(self.mean)


def check_interval(name: str, interval: Interval | None, learnt: Scaling) -> None:
    """Raise `InputError` for a series with longer or shorter steps than the training data."""
    if None not in (interval, learnt.interval) and interval != learnt.interval:
        raise InputError(
            f"{name}: its steps are {interval} apart, and those of the training data "
            f"{learnt.interval}: the model learnt no other interval"
        )


def _column(numbers: Sequence[float]) -> Float[Tensor, "variables 1"]:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]
