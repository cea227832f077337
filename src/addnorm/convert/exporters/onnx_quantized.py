"""Quantised layers in a form that ONNX has: QuantizeLinear and DequantizeLinear around products."""

from abc import ABC, abstractmethod
from functools import cache
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.errors import InputError
from addnorm.quantize.int4 import Int4Matrix, unpacked
from addnorm.quantize.int8 import LARGEST, Int8Matrix
from addnorm.quantize.layers import (
    DynamicRounding,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedTokenHead,
    RoundedByRange,
    Unrounded,
)

ops = torch.ops.quantized_decomposed
"""torch's operators of quantised tensors, after `define_operators`."""

BLOCKED = 21
"""The first opset that has four bits and a scale for each block of a row."""


def _dequantize_blocks(values: Tensor, scale: Tensor, block_size: int) -> Tensor:
    """`s_g Q` for integers with a scale for each block of a row, as one graph node."""
    return values * scale.repeat_interleave(block_size, 1)


def _empty_blocks(values: Tensor, scale: Tensor, block_size: int) -> Tensor:
    return torch.empty_like(values, dtype=scale.dtype)


@cache
def define_operators() -> None:
    """Define torch's and our operators; not on import, because it takes a third of a second."""
    import_module("torch.ao.quantization.fx._decomposed")
    name = "addnorm::dequantize_blocks"
    torch.library.custom_op(name, _dequantize_blocks, mutates_args=())
    torch.library.register_fake(name, _empty_blocks)


class Dequantized(nn.Module, ABC):
    """A quantised matrix that a graph dequantises before use."""

    values: Tensor
    scale: Tensor
    d_in: int

    @abstractmethod
    def dequantized(self) -> Float[Tensor, "d_out d_in"]:
        """The matrix."""

    def times(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """`x Ŵᵀ`."""
        return F.linear(x, self.dequantized())

    def rows(self, places: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_in"]:
        """Look up rows."""
        return F.embedding(places, self.dequantized())


class DequantizedMatrix(Dequantized):
    """An int8 matrix that DequantizeLinear dequantises row by row."""

    zeros: Tensor

    def __init__(self, matrix: Int8Matrix) -> None:
        super().__init__()
        define_operators()
        self.d_in = matrix.d_in
        self.register_buffer("values", matrix.values)
        self.register_buffer("scale", matrix.scale)
        self.register_buffer("zeros", torch.zeros_like(matrix.scale, dtype=torch.long))

    def dequantized(self) -> Float[Tensor, "d_out d_in"]:
        return ops.dequantize_per_channel(
            self.values, self.scale, self.zeros, 0, -LARGEST, LARGEST, torch.int8
        )


class BlockedMatrix(Dequantized):
    """An int4 matrix that DequantizeLinear dequantises block by block.

    Scales are float32, since they have the type of the numbers; those of bfloat16 are among them.
    """

    def __init__(self, matrix: Int4Matrix) -> None:
        super().__init__()
        define_operators()
        self.d_in, self.block_size = matrix.d_in, matrix.group_size
        self.register_buffer("values", unpacked(matrix.values))
        self.register_buffer("scale", matrix.scale.float())

    def dequantized(self) -> Float[Tensor, "d_out d_in"]:
        """The matrix, without the padding of the last block."""
        padded = torch.ops.addnorm.dequantize_blocks(self.values, self.scale, self.block_size)
        return padded if padded.shape[1] == self.d_in else padded[:, : self.d_in]


class Product(nn.Module):
    """`x Ŵᵀ`, with the input rounded by one scale if it was calibrated."""

    def __init__(self, activations: nn.Module) -> None:
        super().__init__()
        define_operators()
        if not isinstance(activations, Unrounded | DynamicRounding | RoundedByRange):
            raise InputError(f"ONNX cannot hold {type(activations).__name__}")
        static = isinstance(activations, RoundedByRange)
        self.scale = float(activations.scale) if static else None

    def forward(
        self, x: Float[Tensor, "*batch d_in"], matrix: Dequantized
    ) -> Float[Tensor, "*batch d_out"]:
        if self.scale is not None:
            ends = (self.scale, 0, -LARGEST, LARGEST, torch.int8)
            x = ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *ends), *ends)
        return matrix.times(x)


def place_dequantized(model: nn.Module) -> None:
    """Convert a model's quantised layers to a form that ONNX supports, in place.

    Raises `InputError` for a matrix that is neither int8 nor int4.
    """
    matrices: dict[int, Dequantized] = {}
    for module in model.modules():
        if not isinstance(module, QuantizedLinear | QuantizedEmbedding | QuantizedTokenHead):
            continue
        if id(module.matrix) not in matrices:
            matrices[id(module.matrix)] = _dequantized(module.matrix)
        module.add_module("matrix", matrices[id(module.matrix)])
        if not isinstance(module, QuantizedEmbedding):
            module.activations = Product(module.activations)


def _dequantized(matrix: nn.Module) -> Dequantized:
    if isinstance(matrix, Int8Matrix):
        return DequantizedMatrix(matrix)
    if isinstance(matrix, Int4Matrix):
        return BlockedMatrix(matrix)
    raise InputError(f"ONNX cannot hold {type(matrix).__name__}: quantise to int8 or int4")


# Four bits in a graph.


def has_blocks(model: nn.Module) -> bool:
    """Whether a model holds 4-bit matrices, which need opset 21."""
    return any(isinstance(module, BlockedMatrix) for module in model.modules())


def blocks_options() -> dict[str, Any]:
    """The options of torch's exporter that write `dequantize_blocks` as a DequantizeLinear."""
    from onnxscript import opset21

    def dequantize_linear(values: Any, scale: Any, block_size: int) -> Any:
        return opset21.DequantizeLinear(values, scale, axis=1, block_size=block_size)

    named = torch.ops.addnorm.dequantize_blocks.default
    return {"opset_version": BLOCKED, "custom_translation_table": {named: dequantize_linear}}


def pack_blocks(graph: Any) -> None:
    """Store the integers of blocks as INT4 in a graph that was traced with INT8."""
    import ml_dtypes
    import onnx_ir as ir

    for node in graph:
        if node.op_type != "DequantizeLinear" or "block_size" not in node.attributes:
            continue
        values = node.inputs[0]
        if values.dtype != ir.DataType.INT4:
            integers = values.const_value.numpy().astype(ml_dtypes.int4)
            values.const_value = ir.Tensor(integers, name=values.name)
            values.dtype = ir.DataType.INT4
