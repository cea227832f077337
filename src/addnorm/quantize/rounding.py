"""Rounding a matrix to four bits: to the nearest, by HQQ, or by GPTQ."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from addnorm.quantize.int4 import LEAST, MOST, Groups
from addnorm.quantize.torchao_import import torchao_for

Rounding = Literal["nearest", "hqq", "gptq"]
"""The ways to round to four bits."""

DAMPING = 0.01
"""What GPTQ adds to the diagonal, as a share of its mean (Frantar et al. 2023, §3.3)."""


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
    """Split each row into groups; the last is filled with zeros."""
    return F.pad(weight, (0, -weight.shape[1] % group_size)).unflatten(1, (-1, group_size))


def _scale_of(grouped: Float[Tensor, "o g n"]) -> Float[Tensor, "o g 1"]:
    """The scale by which the weight of largest size is -8; 1 for a group of zeros."""
    largest = grouped.gather(-1, grouped.abs().argmax(-1, keepdim=True))
    scale = (largest / LEAST).bfloat16().to(grouped.dtype)
    return torch.where(scale == 0, 1.0, scale)


def _rounded(grouped: Float[Tensor, "o g n"], scale: Float[Tensor, "o g 1"]) -> Groups:
    scale = scale.bfloat16()
    integers = (grouped / scale.to(grouped.dtype)).round().clamp(LEAST, MOST)
    return Groups(integers.flatten(1).to(torch.int8), scale[..., 0])
