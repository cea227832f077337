"""The scale of a series, in value and time: by its training part alone, and back to units."""

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
    """The time from one step to the next; None where it is not known."""

    @classmethod
    def standard(cls, values: Float[Tensor, "variables time"]) -> "Scaling":
        """The mean and deviation of each variable, in float64 and biased; gaps take no part.

        A variable that is constant, or is nowhere, keeps its scale.
        """
        mean, deviation = list[float](), list[float]()
        for row in values.double().numpy():
            known = row[~np.isnan(row)]
            mean.append(float(known.mean()) if len(known) else 0.0)
            # The deviation of a constant is no zero where its mean is rounded.
            changes = len(known) > 0 and known.min() < known.max()
            deviation.append(float(known.std()) if changes else 1.0)
        return cls(tuple(mean), tuple(deviation))

    @classmethod
    def none(cls, variables: int) -> "Scaling":
        """Every variable in its units."""
        return cls((0.0,) * variables, (1.0,) * variables)

    def scaled(
        self, values: Float[Tensor, "*batch variables time"]
    ) -> Float[Tensor, "*batch variables time"]:
        """Values in units as a model reads them: computed in float64, given in float32."""
        return ((values.double() - _column(self.mean)) / _column(self.deviation)).float()

    def in_units(
        self, values: Float[Tensor, "*batch variables time"]
    ) -> Float[Tensor, "*batch variables time"]:
        """What a model says, in units and float64."""
        return values.double() * _column(self.deviation) + _column(self.mean)


def check_interval(name: str, interval: Interval | None, learnt: Scaling) -> None:
    """Raise `InputError` for a series whose steps are longer or shorter than those learnt."""
    if None not in (interval, learnt.interval) and interval != learnt.interval:
        raise InputError(
            f"{name}: its steps are {interval} apart, and those of the training data "
            f"{learnt.interval}: the model knows no others"
        )


def _column(numbers: Sequence[float]) -> Float[Tensor, "variables 1"]:
    return torch.tensor(numbers, dtype=torch.float64)[:, None]
