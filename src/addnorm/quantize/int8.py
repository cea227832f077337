"""int8 weights: each row of a matrix as integers up to ±127 with one scale.

`W ≈ s ⊙ Q` with `s_i = max_j |W_ij| / 127` and `Q = round(W / s)`: symmetric, per output channel
(Krishnamoorthi 2018, §3.1.2).
"""

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor, nn
from torch.nn import functional as F

LARGEST = 127

FEW = 4
"""Up to this many rows, torch's int8 product is the faster one on every processor (measured)."""

EXACT = 2**24 // LARGEST**2
"""The number of products of two such integers that float32 sums exactly, in any order."""

_int8_instructions = torch.cpu._is_vnni_supported()  # pyright: ignore[reportPrivateUsage]


def _product(x: Int8[Tensor, "n d"], y: Int8[Tensor, "m d"]) -> Int[Tensor, "n m"]:
    """torch's `x yᵀ` on matrices with regular strides; it misreads those of axes of size one."""
    x, y = (matrix.reshape(-1).view(matrix.shape) for matrix in (x, y))
    return torch.ops.aten._int_mm(x, y.t())


def _is_exact() -> bool:
    """Whether torch's int8 product is exact on this processor.

    Without VNNI (as with `ONEDNN_MAX_CPU_ISA=AVX2`), oneDNN adds pairs of products in 16 bits,
    which saturate.
    """
    x = torch.full((2, 64), LARGEST, dtype=torch.int8, device="cpu")
    return bool((_product(x, x) == 64 * LARGEST**2).all())


_int8_is_exact = _is_exact()  # once, and not while a compiler traces


def int8_matmul(
    x: Int8[Tensor, "rows d_in"], values: Int8[Tensor, "d_out d_in"]
) -> Int[Tensor, "rows d_out"]:
    """The exact product `X Qᵀ` of integers.

    It is torch's int8 product where that is exact and fast, else a product in float32, whose sums
    are exact below 2²⁴. Without instructions for int8 (VNNI), torch multiplies several rows one
    number at a time, a tenth as fast as float32.
    """
    if _uses_int8(x):
        return _product(x, values)
    chunks = zip(x.split(EXACT, 1), values.split(EXACT, 1), strict=True)
    sums = [F.linear(a.float(), b.float()).int() for a, b in chunks]
    return sums[0] if len(sums) == 1 else torch.stack(sums).sum(0).int()


def _uses_int8(x: Int8[Tensor, "rows d_in"]) -> bool:
    """Whether torch's int8 product is both correct and faster for these sizes.

    For matrices of one column it takes a wrong stride, and reads the memory behind them.
    """
    if x.shape[1] == 1:
        return False
    if x.device.type != "cpu":
        return True
    fast = _int8_instructions or torch.compiler.is_compiling() or x.shape[0] <= FEW
    return fast and _int8_is_exact


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
        """`x (s ⊙ Q)ᵀ`, without rounding `x`."""
        return F.linear(x, self.values.to(x.dtype)) * self.scale.to(x.dtype)

    def times_rounded(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """`x (s ⊙ Q)ᵀ`, with each row of `x` quantised to int8 with its own scale."""
        y = int8_product(x.reshape(-1, self.d_in), self.values, self.scale)
        return y.to(x.dtype).view(*x.shape[:-1], y.shape[-1])

    def rows(self, places: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_in"]:
        """Look up the rows `s_i Q_i`."""
        return self.values[places] * self.scale[places][..., None]

    def dequantized(self) -> Float[Tensor, "d_out d_in"]:
        """The matrix in float32."""
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
    integers, scale_of_x = rounded(x)
    return int8_matmul(integers, values) * (scale_of_x[:, None] * scale)
