"""What a quantised layer does with its input: keeps it, or rounds it to int8 as well."""

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from addnorm.config import config
from addnorm.quantize.int4 import Int4Matrix
from addnorm.quantize.int8 import LARGEST, Int8Matrix, int8_matmul, int8_product

Matrix = Int8Matrix | Int4Matrix


class Unrounded(nn.Module):
    """`x Ŵᵀ` with `x` as it is: only the weights are in few bits."""

    def forward(
        self, x: Float[Tensor, "*batch d_in"], matrix: Matrix
    ) -> Float[Tensor, "*batch d_out"]:
        return matrix.times(x)


class RoundedByRow(nn.Module):
    """`x Ŵᵀ` with each row of `x` rounded to int8 by its own largest number; exact sums.

    In a graph for a single row, `x` stays as it is: reading the weights takes all the time there.
    """

    def forward(
        self, x: Float[Tensor, "*batch d_in"], matrix: Int8Matrix
    ) -> Float[Tensor, "*batch d_out"]:
        if torch.compiler.is_exporting() and x.numel() == x.shape[-1]:
            return matrix.times(x)
        y = int8_product(x.reshape(-1, x.shape[-1]), matrix.values, matrix.scale)
        return y.to(x.dtype).view(*x.shape[:-1], y.shape[-1])


class RoundedByRange(nn.Module):
    """`x Ŵᵀ` with all of `x` rounded to int8 by one scale, known before; larger numbers are cut.

    `round(x / s)` within ± 127, with `s = range / 127` of `quantize.statistics`.
    """

    scale: Tensor

    def __init__(self, largest: float = float(LARGEST)) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(largest / LARGEST, dtype=torch.float32))

    def forward(
        self, x: Float[Tensor, "*batch d_in"], matrix: Int8Matrix
    ) -> Float[Tensor, "*batch d_out"]:
        rows = x.reshape(-1, x.shape[-1]) / self.scale
        whole = rows.round().clamp(-LARGEST, LARGEST).to(torch.int8)
        y = int8_matmul(whole, matrix.values) * (self.scale * matrix.scale)
        return y.to(x.dtype).view(*x.shape[:-1], y.shape[-1])


@config
class WeightsOnlyConfig:
    """Inputs stay as they are: the least loss, and less memory to read."""

    kind: Literal["weights_only"] = "weights_only"

    def build(self, largest: float | None = None) -> nn.Module:
        return Unrounded()


@config
class DynamicConfig:
    """Each token's input is rounded by its own largest number, found while the model runs."""

    kind: Literal["dynamic"] = "dynamic"

    def build(self, largest: float | None = None) -> nn.Module:
        return RoundedByRow()


@config
class StaticConfig:
    """All inputs of a layer are rounded by one scale, from a calibration on real data."""

    kind: Literal["static"] = "static"
    range: Literal["minmax", "percentile", "mse"] = "minmax"
    """The largest input to hold: the largest seen, a percentile of the sizes seen, or the one with
    the least squared error.
    """
    percentile: Annotated[float, Field(gt=50.0, le=100.0)] = 99.99
    """The share of the sizes seen that the range holds, in percent, where `range` is that."""

    def build(self, largest: float | None = None) -> nn.Module:
        return RoundedByRange() if largest is None else RoundedByRange(largest)


ActivationsConfig = Annotated[
    WeightsOnlyConfig | DynamicConfig | StaticConfig, Field(discriminator="kind")
]
"""What happens to the inputs of int8 layers."""
