"""int8 weights: each row of a matrix as integers up to ±127 with one scale.

`W ≈ s ⊙ Q` with `s_i = max_j |W_ij| / 127` and `Q = round(W / s)`: symmetric, per output channel
(Krishnamoorthi 2018, §3.1.2).
"""

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn
from torch.nn import functional as F

LARGEST = 127

int8_matmul = torch.ops.aten._int_mm


def rounded(
    weight: Float[Tensor, "d_out d_in"],
) -> tuple[Int8[Tensor, "d_out d_in"], Float[Tensor, " d_out"]]:
    """Quantise a matrix to `Q` and `s`; the scale of a zero row is one."""
    wide = weight.detach().float()
    scale = wide.abs().amax(1) / LARGEST
    scale = torch.where(scale > 0, scale, 1.0)
    return (wide / scale[:, None]).round().to(torch.int8).contiguous(), scale


class Int8Matrix(nn.Module):
    """An int8 matrix `s ⊙ Q`, for products and row look-ups."""

    values: Tensor
    scale: Tensor

    def __init__(self, weight: Float[Tensor, "d_out d_in"]) -> None:
        super().__init__()
        values, scale = rounded(weight)
        self.register_buffer("values", values)
        self.register_buffer("scale", scale)

    @property
    def d_in(self) -> int:
        """The number of columns."""
        return self.values.shape[1]

    def times(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """`x (s ⊙ Q)ᵀ`, with `x` as it is."""
        return F.linear(x, self.values.to(x.dtype)) * self.scale.to(x.dtype)

    def rows(self, places: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_in"]:
        """Look up the rows `s_i Q_i`."""
        return self.values[places] * self.scale[places][..., None]

    def dequantized(self) -> Float[Tensor, "d_out d_in"]:
        """The matrix that this stands for."""
        return self.values * self.scale[:, None]

    def scales(self) -> Float[Tensor, "d_out d_in"]:
        """The scale of each number."""
        return self.scale[:, None].expand(self.values.shape).contiguous()


def int8_product(
    x: Float[Tensor, "rows d_in"],
    values: Int8[Tensor, "d_out d_in"],
    scale: Float[Tensor, " d_out"],
) -> Float[Tensor, "rows d_out"]:
    """`x (s ⊙ Q)ᵀ`, with each row of `x` quantised to int8 with its own scale."""
    whole, by = rounded(x)
    return int8_matmul(whole, values.t()) * (by[:, None] * scale)
