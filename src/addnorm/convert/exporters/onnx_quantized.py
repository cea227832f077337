"""Quantised layers in a form that ONNX has: QuantizeLinear and DequantizeLinear around products."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401 # pyright: ignore[reportUnusedImport]
from torch.nn import functional as F

from addnorm.errors import InputError
from addnorm.quantize.activations import RoundedByRange, RoundedByRow, Unrounded
from addnorm.quantize.int8 import LARGEST, Int8Matrix
from addnorm.quantize.layers import QuantizedEmbedding, QuantizedLinear, QuantizedTokenHead

ops = torch.ops.quantized_decomposed


class DequantizedMatrix(nn.Module):
    """An int8 matrix that DequantizeLinear turns into numbers, row by row."""

    values: Tensor
    scale: Tensor
    zeros: Tensor

    def __init__(self, matrix: Int8Matrix) -> None:
        super().__init__()
        self.register_buffer("values", matrix.values)
        self.register_buffer("scale", matrix.scale)
        self.register_buffer("zeros", torch.zeros_like(matrix.scale, dtype=torch.long))

    def dequantized(self) -> Float[Tensor, "d_out d_in"]:
        """The matrix."""
        return ops.dequantize_per_channel(
            self.values, self.scale, self.zeros, 0, -LARGEST, LARGEST, torch.int8
        )

    def times(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """`x Ŵᵀ`."""
        return F.linear(x, self.dequantized())

    def rows(self, places: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_in"]:
        """Look up rows."""
        return F.embedding(places, self.dequantized())


class Product(nn.Module):
    """`x Ŵᵀ`, the input rounded by one scale where it was calibrated, and else as it is."""

    def __init__(self, activations: nn.Module) -> None:
        super().__init__()
        if not isinstance(activations, Unrounded | RoundedByRow | RoundedByRange):
            raise InputError(f"ONNX cannot hold {type(activations).__name__}")
        static = isinstance(activations, RoundedByRange)
        self.scale = float(activations.scale) if static else None

    def forward(
        self, x: Float[Tensor, "*batch d_in"], matrix: DequantizedMatrix
    ) -> Float[Tensor, "*batch d_out"]:
        if self.scale is not None:
            ends = (self.scale, 0, -LARGEST, LARGEST, torch.int8)
            x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *ends), *ends)
        return matrix.times(x)


def place_dequantized(model: nn.Module) -> None:
    """Give a model's quantised layers the form that ONNX has, in place.

    Raises `InputError` for int4, whose form onnxruntime has as an operator of its own alone.
    """
    matrices: dict[int, DequantizedMatrix] = {}
    for module in model.modules():
        if not isinstance(module, QuantizedLinear | QuantizedEmbedding | QuantizedTokenHead):
            continue
        if not isinstance(module.matrix, Int8Matrix):
            raise InputError("ONNX export has no int4: quantise with --to int8")
        matrix = matrices.setdefault(id(module.matrix), DequantizedMatrix(module.matrix))
        module.add_module("matrix", matrix)
        if not isinstance(module, QuantizedEmbedding):
            module.activations = Product(module.activations)
