"""Decoding GGUF's block types: 32 or 256 integers of few bits, with their scales.

Each function takes blocks of bytes and gives float32, by the arithmetic of ggml's
`dequantize_row_*`; `d` and `m` are halves. A block of 256 has a scale for each 16 or 32 numbers,
which is itself an integer of 4, 6 or 8 bits.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int32, UInt8
from torch import Tensor

Blocks = UInt8[Tensor, "blocks bytes"]
Numbers = Float[Tensor, "blocks numbers"]


def q4_0(blocks: Blocks) -> Numbers:
    """`d (q − 8)`: the first 16 numbers in the lower halves of bytes, 16 in the upper."""
    d, q = _split(blocks, 2, 16)
    return _half(d) * (_nibbles(q, 16) - 8)


def q4_1(blocks: Blocks) -> Numbers:
    """`d q + m`."""
    d, m, q = _split(blocks, 2, 2, 16)
    return _half(d) * _nibbles(q, 16) + _half(m)


def q5_0(blocks: Blocks) -> Numbers:
    """`d (q − 16)`; the fifth bit of number `i` is bit `i` of four bytes."""
    d, high, q = _split(blocks, 2, 4, 16)
    return _half(d) * ((_nibbles(q, 16) | _bits(high) << 4) - 16)


def q5_1(blocks: Blocks) -> Numbers:
    """`d q + m`, with the fifth bits as in `q5_0`."""
    d, m, high, q = _split(blocks, 2, 2, 4, 16)
    return _half(d) * (_nibbles(q, 16) | _bits(high) << 4) + _half(m)


def q8_0(blocks: Blocks) -> Numbers:
    """`d q`, with signed bytes."""
    d, q = _split(blocks, 2, 32)
    return _half(d) * q.view(torch.int8)


def q2_k(blocks: Blocks) -> Numbers:
    """`d s q − m t`; `s` and `t` are the lower and the upper half of a byte for 16 numbers."""
    scales, q, d, m = _split(blocks, 16, 64, 2, 2)
    s, t = _half(d) * (scales & 15), _half(m) * (scales >> 4)
    return _each(s, 16) * _fields(q, 32, 2) - _each(t, 16)


def q3_k(blocks: Blocks) -> Numbers:
    """`d (s − 32) (q − 4 (1 − h))`; `h` is a bit for each number, `s` has 6 bits for 16 numbers."""
    high, q, scales, d = _split(blocks, 32, 64, 12, 2)
    low_bits, high_bits = _split(scales, 8, 4)
    s = (_fields(low_bits, 8, 4) | _fields(high_bits, 4, 2) << 4) - 32
    integers = _fields(q, 32, 2) - 4 * (1 - _fields(high, 32, 1))
    return _each(_half(d) * s, 16) * integers


def q4_k(blocks: Blocks) -> Numbers:
    """`d s q − m t`; `s` and `t` have 6 bits for 32 numbers."""
    d, m, scales, q = _split(blocks, 2, 2, 12, 128)
    s, t = _six_bits(scales)
    return _each(_half(d) * s, 32) * _fields(q, 32, 4) - _each(_half(m) * t, 32)


def q5_k(blocks: Blocks) -> Numbers:
    """`d s q − m t` as `q4_k`, with a fifth bit for each number."""
    d, m, scales, high, q = _split(blocks, 2, 2, 12, 32, 128)
    s, t = _six_bits(scales)
    integers = _fields(q, 32, 4) | _fields(high, 32, 1) << 4
    return _each(_half(d) * s, 32) * integers - _each(_half(m) * t, 32)


def q6_k(blocks: Blocks) -> Numbers:
    """`d s (q − 32)`; `s` is a signed byte for 16 numbers."""
    low, high, scales, d = _split(blocks, 128, 64, 16, 2)
    integers = (_fields(low, 64, 4) | _fields(high, 32, 2) << 4) - 32
    return _each(_half(d) * scales.view(torch.int8), 16) * integers


BLOCKS: dict[str, tuple[int, int, Callable[[Blocks], Numbers]]] = {
    "Q4_0": (32, 18, q4_0),
    "Q4_1": (32, 20, q4_1),
    "Q5_0": (32, 22, q5_0),
    "Q5_1": (32, 24, q5_1),
    "Q8_0": (32, 34, q8_0),
    "Q2_K": (256, 84, q2_k),
    "Q3_K": (256, 110, q3_k),
    "Q4_K": (256, 144, q4_k),
    "Q5_K": (256, 176, q5_k),
    "Q6_K": (256, 210, q6_k),
}
"""Each type: the numbers of a block, its bytes, and how it is read."""


def _split(blocks: Blocks, *sizes: int) -> tuple[Tensor, ...]:
    return tuple(part.contiguous() for part in blocks.split(sizes, dim=-1))


def _half(d: UInt8[Tensor, "blocks 2"]) -> Float[Tensor, "blocks 1"]:
    return d.view(torch.float16).float()


def _each(scales: Float[Tensor, "blocks groups"], size: int) -> Numbers:
    """The scale of each number; groups of `size` share one."""
    return scales.repeat_interleave(size, dim=-1)


def _fields(data: Blocks, run: int, bits: int) -> Int32[Tensor, "blocks numbers"]:
    """Unpack integers of few bits: the lowest bits of all bytes in a run first, then the next."""
    shifts = torch.arange(0, 8, bits)[:, None]
    runs = data.int().unflatten(-1, (-1, 1, run))
    return ((runs >> shifts) & (2**bits - 1)).flatten(1).int()


def _nibbles(data: Blocks, run: int) -> Int32[Tensor, "blocks numbers"]:
    return _fields(data, run, 4)


def _bits(data: UInt8[Tensor, "blocks 4"]) -> Int32[Tensor, "blocks 32"]:
    """Unpack the bits of four bytes, lowest first."""
    return ((data.int()[..., None] >> torch.arange(8)) & 1).flatten(1).int()


def _six_bits(scales: UInt8[Tensor, "blocks 12"]) -> tuple[Tensor, Tensor]:
    """Unpack eight `s` and eight `t` of 6 bits from 12 bytes."""
    low, middle, last = _split(scales, 4, 4, 4)
    s = torch.cat([low & 63, (last & 15) | (low >> 2 & 48)], -1)
    t = torch.cat([middle & 63, last >> 4 | (middle >> 2 & 48)], -1)
    return s, t
