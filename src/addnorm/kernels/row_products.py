"""Products of a few rows with a matrix that is read once, at the speed of memory.

They are for up to eight rows: any number is correct, and slow. None has gradients.
"""

import torch
from jaxtyping import BFloat16, Float, Int8, UInt8
from torch import Tensor

OPERATORS = {
    torch.float32: "row_product",
    torch.bfloat16: "row_product",
    torch.int8: "int8_row_product",
    torch.uint8: "int4_row_product",
}
"""The operator for matrices of each type: two weights of four bits are in a byte."""

torch.library.define("addnorm::row_product", "(Tensor x, Tensor weight, Tensor? bias) -> Tensor")
for _name in ("int8_row_product", "int4_row_product"):
    torch.library.define(
        f"addnorm::{_name}", "(Tensor x, Tensor values, Tensor scale, Tensor? bias) -> Tensor"
    )


def _shape(x: Tensor, weight: Tensor, *others: object) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[0])


for _name in {*OPERATORS.values()}:
    torch.library.register_fake(f"addnorm::{_name}", _shape)


def row_product(
    x: Float[Tensor, "rows d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "rows d_out"]:
    """`x Wᵀ + b` of one dtype, float32 or bfloat16, with sums in float32."""
    return torch.ops.addnorm.row_product(*_prepared(x, weight, bias))


def int8_row_product(
    x: Float[Tensor, "rows d_in"],
    values: Int8[Tensor, "d_out d_in"],
    scale: Float[Tensor, " d_out"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "rows d_out"]:
    """`x (s ⊙ Q)ᵀ + b`, with each row of `x` rounded to 24 bits relative to its largest number.

    The error of a number of `x` is thus at most that of float32 for the largest. A row with a
    number that is not finite gives NaN. `x` and `b` are float32 or bfloat16, the scales float32.
    """
    return torch.ops.addnorm.int8_row_product(*_prepared(x, values, scale, bias))


def int4_row_product(
    x: Float[Tensor, "rows d_in"],
    values: UInt8[Tensor, "d_out bytes"],
    scale: BFloat16[Tensor, "d_out n_groups"],
    bias: Float[Tensor, " d_out"] | None = None,
) -> Float[Tensor, "rows d_out"]:
    """`x Ŵᵀ + b` with the matrix of `quantize.int4`, and `x` rounded to 16 bits in blocks of 32.

    The largest number of a block has all of them: the error of a number is at most 1/65,278 of it.
    A row with a number that is not finite gives NaN. The size of groups is a multiple of 32.
    """
    return torch.ops.addnorm.int4_row_product(*_prepared(x, values, scale, bias))


def _prepared(*tensors: Tensor | None) -> list[Tensor | None]:
    """The tensors in the layout that the operators read.

    Raises `RuntimeError` where gradients are wanted.
    """
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors):
        raise RuntimeError("row products have no gradients: call them under torch.no_grad()")
    return [None if x is None else x.contiguous() for x in tensors]
