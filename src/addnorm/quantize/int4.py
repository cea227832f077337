"""int4 weights: four bits each, with one scale for every group of neighbours in a row.

`W_ij ≈ s_ig Q_ij` with whole `Q` from -8 to 7 and `g = j // group_size`. Two neighbours share a
byte, the first in its lower half, each as `Q + 8`; scales are bfloat16. With groups of 32 these are
4.5 bits a weight, and the numbers that GGUF calls Q4_0.
"""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import BFloat16, Float, Int, Int8, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

LEAST, MOST = -8, 7


class Groups(NamedTuple):
    """The whole numbers of a matrix and the scale of each of their groups."""

    values: Int8[Tensor, "d_out width"]
    scale: BFloat16[Tensor, "d_out n_groups"]


class Int4Matrix(nn.Module):
    """An int4 matrix of `d_in` columns, for products and row look-ups.

    A last group that is not full has zeros behind its columns.
    """

    values: Tensor
    scale: Tensor

    def __init__(self, groups: Groups, d_in: int) -> None:
        super().__init__()
        self.d_in = d_in
        self.register_buffer("values", packed(groups.values))
        self.register_buffer("scale", groups.scale)

    @property
    def group_size(self) -> int:
        """The number of neighbours that share a scale."""
        return 2 * self.values.shape[1] // self.scale.shape[1]

    def times(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """`x Wᵀ`: on a CPU by torch's product for four bits, in bfloat16 with float32 sums."""
        if x.device.type != "cpu" or torch.compiler.is_compiling() or x.dtype == torch.float64:
            return F.linear(x, self.dequantized().to(x.dtype))
        rows = x.reshape(-1, self.d_in)
        y = self._fused().times(rows).to(x.dtype)
        return y.view(*x.shape[:-1], y.shape[1])

    def rows(self, places: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_in"]:
        """Look up rows."""
        return restored(self.values[places], self.scale[places], self.d_in)

    def dequantized(self) -> Float[Tensor, "d_out d_in"]:
        """The matrix that this stands for."""
        return restored(self.values, self.scale, self.d_in)

    def scales(self) -> Float[Tensor, "d_out d_in"]:
        """The scale of each number."""
        return self.scale.float().repeat_interleave(self.group_size, 1)[:, : self.d_in]

    def _fused(self) -> "_Kernel":
        """The matrix as the kernel reads it, made again where the weights have changed."""
        held = [self.values, self.scale]
        state = [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in held]
        known = _KERNELS.get(self)
        if known is None or known.state != state:
            known = _KERNELS[self] = _Kernel.of(self, state)
        return known


ROWS = 16
"""The kernel takes matrices of a multiple of so many rows."""


class _Kernel(NamedTuple):
    """A matrix in the layout of torch's product for four bits."""

    values: Tensor
    scales: Tensor
    group_size: int
    d_out: int
    state: list[tuple[int, int]]

    @classmethod
    def of(cls, matrix: Int4Matrix, state: list[tuple[int, int]]) -> "_Kernel":
        d_out = len(matrix.values)
        missing = -d_out % ROWS
        values = F.pad(unpacked(matrix.values).int() - LEAST, (0, 0, 0, missing), value=-LEAST)
        scale = F.pad(matrix.scale.t(), (0, missing))
        both = torch.stack([scale, torch.zeros_like(scale)], -1)  # `(q - 8) s + 0`
        laid = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.contiguous(), 1)
        return cls(laid, both.contiguous(), matrix.group_size, d_out, state)

    def times(self, x: Float[Tensor, "n d_in"]) -> BFloat16[Tensor, "n d_out"]:
        width = self.scales.shape[0] * self.group_size
        x = F.pad(x.bfloat16(), (0, width - x.shape[1])).contiguous()
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.values, self.group_size, self.scales)
        return y[:, : self.d_out]


_KERNELS: WeakKeyDictionary[Int4Matrix, _Kernel] = WeakKeyDictionary()
"""What was made of matrices for the kernel; no part of a model's state."""


def packed(values: Int8[Tensor, "d_out width"]) -> UInt8[Tensor, "d_out bytes"]:
    """Two numbers a byte, the first in its lower half."""
    shifted = (values - LEAST).to(torch.uint8)
    return shifted[:, ::2] | (shifted[:, 1::2] << 4)


def unpacked(values: UInt8[Tensor, "*rows bytes"]) -> Int8[Tensor, "*rows width"]:
    """The numbers of `packed`."""
    both = torch.stack([values & 15, values >> 4], -1)
    return both.flatten(-2).to(torch.int8) + LEAST


def restored(
    values: UInt8[Tensor, "*rows bytes"], scale: BFloat16[Tensor, "*rows n_groups"], d_in: int
) -> Float[Tensor, "*rows d_in"]:
    """`s_g Q` in float32, without what fills up the last group."""
    whole = unpacked(values).float().unflatten(-1, (scale.shape[-1], -1))
    return (whole * scale.float()[..., None]).flatten(-2)[..., :d_in]
