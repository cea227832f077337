"""Products of a few rows with matrices that are read once, at the speed of memory.

They are for few rows: any number is correct, and slow. None has gradients. The operators take
lists: the results of several matrices are side by side.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import BFloat16, Float, Int8, Int32, UInt8
from torch import Tensor

OPERATORS = {
    torch.float32: "row_product",
    torch.bfloat16: "row_product",
    torch.int8: "int8_row_product",
    torch.uint8: "int4_row_product",
}
"""The operator for matrices of each type: two weights of four bits are in a byte."""

NAMES = sorted({*OPERATORS.values(), "int8_matmul"})
"""The operators of this module."""

_library = torch.library.Library("addnorm", "FRAGMENT")


def _shape(x: Tensor, matrices: Sequence[Tensor], *others: object) -> Tensor:
    return x.new_empty(*x.shape[:-1], sum(len(matrix) for matrix in matrices))


def _shape_of_integers(x: Tensor, values: Tensor, few: int) -> Tensor:
    return x.new_empty(x.shape[0], len(values), dtype=torch.int32)


_FACTORS = {
    "row_product": "Tensor[] weights, Tensor[]? biases, Tensor? packed=None, int few=0",
    "int8_row_product": "Tensor[] values, Tensor[] scales, Tensor[]? biases",
    "int4_row_product": "Tensor[] values, Tensor[] scales, Tensor[]? biases, int digits=2",
    "int8_matmul": "Tensor values, int few",
}
for _name in NAMES:
    _library.define(f"{_name}(Tensor x, {_FACTORS[_name]}) -> Tensor")
    # `register_fake` looks for its caller in all modules.
    _library.impl(_name, _shape_of_integers if _name == "int8_matmul" else _shape, "Meta")


def row_product(
    x: Float[Tensor, "rows d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "rows d_out"]:
    """`x Wᵀ + b` of one dtype, float32 or bfloat16, with sums in float32."""
    return torch.ops.addnorm.row_product(*_prepared(x, bias, weight))


def int8_row_product(
    x: Float[Tensor, "rows d_in"],
    values: Int8[Tensor, "d_out d_in"],
    scale: Float[Tensor, " d_out"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "rows d_out"]:
    """`x (s ⊙ Q)ᵀ + b` with `x` rounded to 24 bits, of which the largest number of a row has all.

    The error of a number of `x` is thus at most that of float32 for the largest. A row with a
    number that is not finite gives NaN. `x` and `b` are float32 or bfloat16, the scales float32.
    """
    return torch.ops.addnorm.int8_row_product(*_prepared(x, bias, values, scale))


def int4_row_product(
    x: Float[Tensor, "rows d_in"],
    values: UInt8[Tensor, "d_out bytes"],
    scale: BFloat16[Tensor, "d_out n_groups"],
    bias: Float[Tensor, " d_out"] | None = None,
    *,
    digits: Literal[1, 2] = 2,
) -> Float[Tensor, "rows d_out"]:
    """`x Ŵᵀ + b` with the matrix of `quantize.int4`, and `x` rounded to 16 bits in blocks of 32.

    The largest number of a block has all of them: the error of a number is at most 1/65,278 of it,
    or 1/254 with one digit, of eight bits. A row with a number that is not finite gives NaN. The
    size of groups is a multiple of 32.
    """
    return torch.ops.addnorm.int4_row_product(*_prepared(x, bias, values, scale), digits)


def int8_matmul(
    x: Int8[Tensor, "rows d_in"], values: Int8[Tensor, "d_out d_in"]
) -> Int32[Tensor, "rows d_out"]:
    """The exact product `X Qᵀ` of integers; those of `x` are from -127 to 127."""
    return torch.ops.addnorm.int8_matmul(x.contiguous(), values.contiguous(), len(x))


def _prepared(
    x: Tensor, bias: Tensor | None, *matrix: Tensor
) -> list[Tensor | list[Tensor] | None]:
    """The tensors in the layout that the operators read.

    Raises `RuntimeError` where gradients are wanted.
    """
    given = [x, *matrix] if bias is None else [x, *matrix, bias]
    if torch.is_grad_enabled() and any(each.requires_grad for each in given):
        raise RuntimeError("row products have no gradients: call them under torch.no_grad()")
    x, *lists = [each.contiguous() for each in given]
    return [x, *([each] for each in lists), *([None] if bias is None else [])]
