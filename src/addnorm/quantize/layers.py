"""Layers with quantised matrices for weights: linear, recurrent, embedding and token head."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from addnorm.nn.context import Context
from addnorm.nn.functional import soft_capped
from addnorm.nn.heads import TokenHead
from addnorm.quantize.activations import Matrix


class QuantizedLinear(nn.Module):
    """`(x / m) Ŵᵀ + b`: a linear layer with a quantised weight.

    `m` divides each feature of the input, and its column of the weight was multiplied by it before
    (`smoothing` in `quantize.statistics`); None divides by nothing.
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
    """A recurrent layer of torch's whose matrices become numbers again each time that it runs.

    Its inputs and its state stay as they are; biases too.
    """

    def __init__(self, matrices: Mapping[str, Matrix], kernel: nn.RNNBase) -> None:
        super().__init__()
        self.matrices = nn.ModuleDict(matrices)
        others = kernel.named_parameters()
        self.biases = nn.ParameterDict({k: one for k, one in others if k not in matrices})
        self._kernel = (copy.deepcopy(kernel).to("meta"),)  # in a tuple, so that it is no child

    def forward(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        return self.plain()(x, state)

    def plain(self) -> nn.RNNBase:
        """A plain layer with the numbers that the matrices stand for."""
        return self.with_weights(lambda matrix: nn.Parameter(matrix.dequantized(), False))

    def with_weights(self, weight: Callable[[Matrix], nn.Parameter]) -> nn.RNNBase:
        """A plain layer with these weights in place of the matrices."""
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
