"""int4 weights: four bits each, with one scale for every group of adjacent weights in a row.

`W_ij ≈ s_ig Q_ij` with integers `Q` from -8 to 7 and `g = j // group_size`. Two neighbours share a
byte, the first in its lower half, each as `Q + 8`; scales are bfloat16. With groups of 32 this
takes 4.5 bits a weight, and the values are those of GGUF's Q4_0.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from jaxtyping import BFloat16, Float, Int, Int8, UInt8
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.quantize.int8 import LARGEST
from addnorm.quantize.torchao_import import torchao_for

LEAST, MOST = -8, 7

Rounding = Literal["nearest", "hqq", "gptq"]
"""The ways to round to four bits."""

DAMPING = 0.01
"""The share of the mean of the diagonal that GPTQ adds to it (Frantar et al. 2023, §3.3)."""


class Groups(NamedTuple):
    """The integers of a matrix, and the scale of each group."""

    values: Int8[Tensor, "d_out width"]
    scale: BFloat16[Tensor, "d_out n_groups"]


class Int4Matrix(nn.Module):
    """An int4 matrix with `d_in` columns, for products and row look-ups.

    An incomplete last group is filled with zeros.
    """

    values: Tensor
    scale: Tensor

    def __init__(self, groups: Groups, d_in: int) -> None:
        super().__init__()
        self.d_in = d_in
        self.register_buffer("values", packed(groups.values))
        self.register_buffer("scale", groups.scale.contiguous())

    @property
    def group_size(self) -> int:
        """The number of adjacent weights that share a scale."""
        return 2 * self.values.shape[1] // self.scale.shape[1]

    def times(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """`x Wᵀ`: on a CPU by torch's four-bit product, in bfloat16 with float32 sums."""
        if x.device.type != "cpu" or torch.compiler.is_compiling() or x.dtype == torch.float64:
            return F.linear(x, self.dequantized().to(x.dtype))
        rows = x.reshape(-1, self.d_in)
        y = self._fused().times(rows).to(x.dtype)
        return y.view(*x.shape[:-1], y.shape[1])

    def times_rounded(self, x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """`x Wᵀ` with `x` rounded to int8 in blocks of 32."""
        return self.times(rounded_blocks(x))

    def rows(self, places: Int[Tensor, "*batch"]) -> Float[Tensor, "*batch d_in"]:
        """Look up rows."""
        return restored(self.values[places], self.scale[places], self.d_in)

    def dequantized(self) -> Float[Tensor, "d_out d_in"]:
        """The matrix in float32."""
        return restored(self.values, self.scale, self.d_in)

    def scales(self) -> Float[Tensor, "d_out d_in"]:
        """The scale of each number."""
        return self.scale.float().repeat_interleave(self.group_size, 1)[:, : self.d_in]

    def _fused(self) -> "_Kernel":
        """The matrix in the kernel's layout, rebuilt if the weights have changed."""
        buffers = [self.values, self.scale]
        state = [(x.data_ptr(), 0 if x.is_inference() else x._version) for x in buffers]
        kernel = _KERNELS.get(self)
        if kernel is None or kernel.state != state:
            kernel = _KERNELS[self] = _Kernel.of(self, state)
        return kernel


ROWS = 16
"""The kernel needs a multiple of this number of rows."""


class _Kernel(NamedTuple):
    """A matrix in the layout of torch's four-bit product."""

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
        affine = torch.stack([scale, torch.zeros_like(scale)], -1)  # `(q - 8) s + 0`
        layout = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values.contiguous(), 1)
        return cls(layout, affine.contiguous(), matrix.group_size, d_out, state)

    def times(self, x: Float[Tensor, "n d_in"]) -> BFloat16[Tensor, "n d_out"]:
        width = self.scales.shape[0] * self.group_size
        x = F.pad(x.bfloat16(), (0, width - x.shape[1])).contiguous()
        y = torch.ops.aten._weight_int4pack_mm_for_cpu(x, self.values, self.group_size, self.scales)
        return y[:, : self.d_out]


_KERNELS: WeakKeyDictionary[Int4Matrix, _Kernel] = WeakKeyDictionary()
"""The kernel's layout of each matrix, which is not part of a model's state."""


def packed(values: Int8[Tensor, "d_out width"]) -> UInt8[Tensor, "d_out bytes"]:
    """Pack two integers into each byte, the first into the lower half."""
    shifted = (values - LEAST).to(torch.uint8)
    return (shifted[:, ::2] | (shifted[:, 1::2] << 4)).contiguous()


def unpacked(values: UInt8[Tensor, "*rows bytes"]) -> Int8[Tensor, "*rows width"]:
    """Undo `packed`: return the integers."""
    halves = torch.stack([values & 15, values >> 4], -1)
    return halves.flatten(-2).to(torch.int8) + LEAST


def restored(
    values: UInt8[Tensor, "*rows bytes"], scale: BFloat16[Tensor, "*rows n_groups"], d_in: int
) -> Float[Tensor, "*rows d_in"]:
    """`s_g Q` in float32, without the zeros that pad the last group."""
    groups = unpacked(values).float().unflatten(-1, (scale.shape[-1], -1))
    return (groups * scale.float()[..., None]).flatten(-2)[..., :d_in]


BLOCK = 32
"""The number of neighbours of an input that are rounded relative to their largest."""


def rounded_blocks(x: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_in"]:
    """`s round(x / s)` with `s = max |x| / 127` of each block of 32 neighbours of `x`.

    The last block may be shorter.
    """
    wide = F.pad(x, (0, -x.shape[-1] % BLOCK)).float().unflatten(-1, (-1, BLOCK))
    scale = wide.abs().amax(-1, keepdim=True) / LARGEST
    rounded = (wide / torch.where(scale > 0, scale, 1.0)).round() * scale
    return rounded.flatten(-2)[..., : x.shape[-1]].to(x.dtype)


# Rounding weights.


def round_nearest(weight: Float[Tensor, "d_out d_in"], group_size: int) -> Groups:
    """Round each weight to the nearest multiple of its group's scale.

    The weight of largest size becomes -8 exactly: `s = w_largest / -8`, of either sign.
    """
    grouped = _grouped(weight.detach().float(), group_size)
    return _rounded(grouped, _scale_of(grouped))


def round_hqq(weight: Float[Tensor, "d_out d_in"], group_size: int) -> Groups:
    """Round by half-quadratic quantisation (Badri & Shaji 2023), as torchao does.

    The scales lessen the error, in which large weights count less. Raises `InputError` without
    torchao.
    """
    choose_scales = _torchao_hqq()
    wide = _grouped(weight.detach().float(), group_size).flatten(1)
    _, scale = choose_scales(wide, [1, group_size], LEAST, MOST)
    return _rounded(wide.unflatten(1, (-1, group_size)), scale.view(len(wide), -1, 1))


def _torchao_hqq() -> Callable[..., tuple[Tensor, Tensor]]:
    with torchao_for('rounding = "hqq"', 'choose "nearest" or "gptq"'):
        from torchao.quantization.quant_primitives import (
            _choose_qparams_and_quantize_scale_only_hqq as choose,  # pyright: ignore[reportPrivateUsage]
        )
    return choose


def round_gptq(
    weight: Float[Tensor, "d_out d_in"], gram: Float[Tensor, "d_in d_in"], group_size: int
) -> Groups:
    """Round column by column; later columns compensate the output error of earlier ones.

    Lessens `‖(W - Ŵ) X‖²` (Frantar et al. 2023, algorithm 1), given `gram = X Xᵀ`, in float64. If
    rounding to the nearest has the smaller error, that is the result.
    """
    nearest = round_nearest(weight, group_size)
    wide = _grouped(weight.detach().double(), group_size).flatten(1)
    missing = wide.shape[1] - len(gram)
    padded_gram = F.pad(gram.double(), (0, missing, 0, missing))
    gptq = _compensated(wide, _inverse_factor(padded_gram), group_size)
    return min(nearest, gptq, key=lambda groups: output_error(groups, wide, padded_gram))


def output_error(
    groups: Groups, weight: Float[Tensor, "d_out width"], gram: Float[Tensor, "width width"]
) -> float:
    """`‖(W - Ŵ) X‖² = tr((W - Ŵ) G (W - Ŵ)ᵀ)` with `G = X Xᵀ`."""
    values = groups.values.double().unflatten(1, (groups.scale.shape[1], -1))
    error = weight - (values * groups.scale.double()[..., None]).flatten(1)
    return float(((error @ gram) * error).sum())


def _inverse_factor(gram: Float[Tensor, "width width"]) -> Float[Tensor, "width width"]:
    """The upper Cholesky factor of `(G + λ I)⁻¹`; features that are always zero are independent."""
    damped = gram.clone()
    diagonal = damped.diagonal()
    spread = DAMPING * diagonal.mean()
    diagonal += spread if spread > 0 else 1.0
    return torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(damped)), upper=True)


def _compensated(
    weight: Float[Tensor, "d_out width"], factor: Float[Tensor, "width width"], group_size: int
) -> Groups:
    remaining = weight.clone()
    values, scales = [], []
    for start in range(0, remaining.shape[1], group_size):
        group = slice(start, start + group_size)
        scale = _scale_of(remaining[:, None, group])[:, 0].double()
        errors = torch.zeros_like(remaining[:, group])
        for j in range(group_size):
            column = remaining[:, start + j]
            integers = (column / scale[:, 0]).round().clamp(LEAST, MOST)
            errors[:, j] = (column - integers * scale[:, 0]) / factor[start + j, start + j]
            remaining[:, group] -= errors[:, j, None] * factor[start + j, group]
            values.append(integers)
        scales.append(scale)
        remaining[:, group.stop :] -= errors @ factor[group, group.stop :]
    return Groups(torch.stack(values, 1).to(torch.int8), torch.cat(scales, 1).bfloat16())


def _grouped(weight: Float[Tensor, "d_out d_in"], group_size: int) -> Float[Tensor, "o g n"]:
    """Split each row into groups, with the last one padded with zeros."""
    return F.pad(weight, (0, -weight.shape[1] % group_size)).unflatten(1, (-1, group_size))


def _scale_of(grouped: Float[Tensor, "o g n"]) -> Float[Tensor, "o g 1"]:
    """The scale at which the weight of largest magnitude is -8; 1 for a group of zeros."""
    largest = grouped.gather(-1, grouped.abs().argmax(-1, keepdim=True))
    scale = (largest / LEAST).bfloat16().to(grouped.dtype)
    return torch.where(scale == 0, 1.0, scale)


def _rounded(grouped: Float[Tensor, "o g n"], scale: Float[Tensor, "o g 1"]) -> Groups:
    scale = scale.bfloat16()
    integers = (grouped / scale.to(grouped.dtype)).round().clamp(LEAST, MOST)
    return Groups(integers.flatten(1).to(torch.int8), scale[..., 0])
