"""GGUF's blocks of 32 numbers with one scale, Q8_0 and Q4_0, with the model's own integers."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int8, UInt8
from torch import Tensor

from addnorm.errors import InputError

BLOCK = 32

HALF_ROUNDING = 2**-10
"""How far a scale may move as it becomes a half: twice the rounding of normal numbers."""


def add_quantized(writer: Any, name: str, tensor: Tensor, scale: Tensor, dtype: str) -> None:
    """Add a tensor whose numbers are whole multiples of `scale`; in float32 where that is zero.

    Raises `InputError` for rows that are not blocks of 32, and scales that a half cannot hold.
    """
    import gguf

    tensor, scale = (one.detach().cpu().float().contiguous() for one in (tensor, scale))
    if tensor.ndim == 1 or name == "position_embd.weight" or not scale.any():
        writer.add_tensor(name, tensor.numpy())
        return
    if not scale.all():
        raise InputError(f"GGUF has one type for all of {name}, of which a part was kept")
    kinds = gguf.GGMLQuantizationType
    pack, kind = (q8_0, kinds.Q8_0) if dtype == "q8_0" else (q4_0, kinds.Q4_0)
    if tensor.shape[-1] % BLOCK:
        raise InputError(f"GGUF has blocks of {BLOCK} numbers, and {name} rows of {len(tensor[0])}")
    half = scale.half()
    if ((half.float() - scale).abs() > HALF_ROUNDING * scale.abs()).any():
        raise InputError(f"GGUF keeps scales as halves, which are too coarse for {name}")
    whole = (tensor / scale).round().to(torch.int8)
    blocks = pack(whole.unflatten(-1, (-1, BLOCK)), half.unflatten(-1, (-1, BLOCK))[..., 0])
    writer.add_tensor(name, blocks.flatten(-2).numpy(), raw_dtype=kind)


def q8_0(
    whole: Int8[Tensor, "rows blocks 32"], scale: Float[Tensor, "rows blocks"]
) -> UInt8[Tensor, "rows blocks 34"]:
    """The half scale, then 32 bytes."""
    return torch.cat([_bytes(scale), whole.view(torch.uint8)], -1)


def q4_0(
    whole: Int8[Tensor, "rows blocks 32"], scale: Float[Tensor, "rows blocks"]
) -> UInt8[Tensor, "rows blocks 18"]:
    """The half scale, then the first 16 numbers in the lower halves of bytes, 16 in the upper."""
    shifted = (whole + 8).to(torch.uint8)
    return torch.cat([_bytes(scale), shifted[..., :16] | (shifted[..., 16:] << 4)], -1)


def _bytes(scale: Float[Tensor, "rows blocks"]) -> UInt8[Tensor, "rows blocks 2"]:
    return torch.from_numpy(scale.numpy()[..., None].view(np.uint8))
