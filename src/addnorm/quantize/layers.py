"""Layers with quantised weights (linear, recurrent, embedding, token head), and their inputs."""

import copy
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.functional import soft_capped
from addnorm.nn.heads import TokenHead
from addnorm.quantize.int4 import Int4Matrix
from addnorm.quantize.int8 import LARGEST, Int8Matrix, int8_matmul

Matrix = Int8Matrix | Int4Matrix


class Unrounded(nn.Module):
    """`x Ŵᵀ` with the given `x`: only the weights are quantised."""

    def forward(
        self, x: Float[Tensor, "*batch d_in"], matrix: Matrix
    ) -> Float[Tensor, "*batch d_out"]:
        return matrix.times(x)


class DynamicRounding(nn.Module):
    """`x Ŵᵀ` with numbers of `x` rounded to int8 relative to the largest of their row.

    With int4 weights, relative to the largest of their block of 32. In a graph for a single row `x`
    is not rounded, since reading the weights takes all the time.
    """

    def forward(
        self, x: Float[Tensor, "*batch d_in"], matrix: Matrix
    ) -> Float[Tensor, "*batch d_out"]:
        if torch.compiler.is_exporting() and x.numel() == x.shape[-1]:
            return matrix.times(x)
        return matrix.times_rounded(x)


class RoundedByRange(nn.Module):
    """`x Ŵᵀ` with `x` rounded to int8 by one calibrated scale; larger numbers are clipped.

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
        integers = rows.round().clamp(-LARGEST, LARGEST).to(torch.int8)
        y = int8_matmul(integers, matrix.values) * (self.scale * matrix.scale)
        return y.to(x.dtype).view(*x.shape[:-1], y.shape[-1])


@config
class WeightsOnlyConfig:
    """Do not round inputs: the smallest loss of quality, and less memory to read."""

    kind: Literal["weights_only"] = "weights_only"

    def build(self, largest: float | None = None) -> nn.Module:
        return Unrounded()


@config
class DynamicConfig:
    """Round each token's input relative to its largest number, found at run time.

    With int4 weights, each 32 neighbours of it.
    """

    kind: Literal["dynamic"] = "dynamic"

    def build(self, largest: float | None = None) -> nn.Module:
        return DynamicRounding()


@config
class StaticConfig:
    """Round all inputs of a layer by one scale, calibrated on real data."""

    kind: Literal["static"] = "static"
    range: Literal["minmax", "percentile", "mse"] = "minmax"
    """The largest size of an input in int8: the largest of the calibration, a percentile of its
    sizes, or the one with the least squared error.
    """
    percentile: Annotated[float, Field(gt=50.0, le=100.0)] = 99.99
    """The percentage of the calibration's sizes within the range, if `range` is "percentile"."""

    def build(self, largest: float | None = None) -> nn.Module:
        return RoundedByRange() if largest is None else RoundedByRange(largest)


ActivationsConfig = Annotated[
    WeightsOnlyConfig | DynamicConfig | StaticConfig, Field(discriminator="kind")
]
"""Whether and how the inputs of int8 layers are rounded."""


class QuantizedLinear(nn.Module):
    """`(x / m) Ŵᵀ + b`: a linear layer with a quantised weight.

    `m` divides each feature of the input, and the column of that feature in the weight has been
    multiplied by it (`smoothing` in `quantize.statistics`); None divides by nothing.
    """

    smoothing: Tensor | None

    def __init__(
        self,
        matrix: Matrix,
        activations: nn.Module,
        bias: nn.Parameter | None,
        smoothing: Float[Tensor, " d_in"] | None = None,
    ) -> None:
        super().__init__()
        self.matrix = matrix
        self.activations = activations
        self.bias = bias
        self.register_buffer("smoothing", smoothing)

    @property
    def in_features(self) -> int:
        return self.matrix.d_in

    @property
    def out_features(self) -> int:
        return self.matrix.values.shape[0]

    def forward(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        x = x if self.smoothing is None else x / self.smoothing.to(x.dtype)
        y = self.activations(x, self.matrix)
        return y if self.bias is None else y + self.bias


class QuantizedRecurrence(nn.Module):
    """A recurrent layer of torch whose quantised matrices are dequantised at each run.

    Its inputs, its state and its biases are not quantised.
    """

    def __init__(self, matrices: Mapping[str, Matrix], kernel: nn.RNNBase) -> None:
        super().__init__()
        self.matrices = nn.ModuleDict(matrices)
        parameters = kernel.named_parameters()
        self.biases = nn.ParameterDict({k: bias for k, bias in parameters if k not in matrices})
        self._kernel = (copy.deepcopy(kernel).to("meta"),)  # a tuple hides it from the children

    def forward(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        return self.plain()(x, state)

    def plain(self) -> nn.RNNBase:
        """A plain layer with the dequantised matrices."""
        return self.with_weights(lambda matrix: nn.Parameter(matrix.dequantized(), False))

    def with_weights(self, weight: Callable[[Matrix], nn.Parameter]) -> nn.RNNBase:
        """A plain layer with these weights as its matrices."""
        plain = copy.deepcopy(self._kernel[0])
        for name, matrix in self.matrices.items():
            setattr(plain, name, weight(matrix))  # pyright: ignore[reportArgumentType]
        for name, bias in self.biases.items():
            setattr(plain, name, bias)
        return plain


class QuantizedEmbedding(nn.Module):
    """Row `t` of a quantised table for token `t`."""

    def __init__(self, matrix: Matrix) -> None:
        super().__init__()
        self.matrix = matrix

    @property
    def num_embeddings(self) -> int:
        return self.matrix.values.shape[0]

    def forward(self, tokens: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_model"]:
        return self.matrix.rows(tokens)


class QuantizedTokenHead(nn.Module):
    """`TokenHead` with a quantised weight."""

    def __init__(self, matrix: Matrix, activations: nn.Module, head: TokenHead) -> None:
        super().__init__()
        self.matrix = matrix
        self.activations = activations
        self.bias = head.bias
        self.transform = head.transform
        self.scale = head.scale
        self.softcap = head.softcap

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], ctx: Context
    ) -> Float[Tensor, "batch seq vocab"]:
        x = x if self.transform is None else self.transform(x)
        x = x if self.scale == 1.0 else x * self.scale
        y = self.activations(x, self.matrix)
        return soft_capped(y if self.bias is None else y + self.bias, self.softcap)
