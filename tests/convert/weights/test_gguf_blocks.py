"""Blocks of few bits as numbers: loops over single bits by ggml's layouts, and its own package."""

import struct

import numpy as np
import pytest
import torch
from torch import Tensor

from addnorm.convert.weights.gguf_blocks import BLOCKS

Block = bytes


def half(data: bytes) -> np.float32:
    return np.float32(struct.unpack("<e", data)[0])


def bit(data: bytes, i: int) -> int:
    return data[i // 8] >> (i % 8) & 1


def of_32(kind: str, data: Block) -> list[np.float32]:
    """`d q + m`, or `d (q − offset)`, one number after the other."""
    d, rest = half(data[:2]), data[2:]
    m, rest = (half(rest[:2]), rest[2:]) if kind.endswith("_1") else (np.float32(0), rest)
    high, rest = (rest[:4], rest[4:]) if kind.startswith("Q5") else (bytes(4), rest)
    numbers: list[np.float32] = []
    for i in range(32):
        if kind == "Q8_0":
            numbers.append(d * np.float32(struct.unpack("b", rest[i : i + 1])[0]))
            continue
        q = (rest[i] & 15 if i < 16 else rest[i - 16] >> 4) | bit(high, i) << 4
        offset = 0 if kind.endswith("_1") else 16 if kind == "Q5_0" else 8
        numbers.append(d * np.float32(q - offset) + m)
    return numbers


def scale_and_min(scales: bytes, j: int) -> tuple[int, int]:
    """ggml's `get_scale_min_k4`."""
    if j < 4:
        return scales[j] & 63, scales[j + 4] & 63
    return (
        (scales[j + 4] & 15) | (scales[j - 4] >> 6 << 4),
        (scales[j + 4] >> 4) | (scales[j] >> 6 << 4),
    )


def of_256(kind: str, data: Block) -> list[np.float32]:
    """The blocks of 256, one number after the other."""
    f = np.float32
    numbers: list[np.float32] = []
    for i in range(256):
        chunk, within = divmod(i, 128)
        if kind == "Q2_K":
            scale, d, m = data[i // 16], half(data[80:82]), half(data[82:84])
            q = data[16 + 32 * chunk + within % 32] >> 2 * (within // 32) & 3
            numbers.append(d * f(scale & 15) * f(q) - m * f(scale >> 4))
        elif kind == "Q3_K":
            j, scales = i // 16, data[96:108]
            low = scales[j % 8] >> 4 * (j // 8) & 15
            scale = (low | (scales[8 + j % 4] >> 2 * (j // 4) & 3) << 4) - 32
            q = data[32 + 32 * chunk + within % 32] >> 2 * (within // 32) & 3
            q -= 0 if data[i % 32] >> (i // 32) & 1 else 4
            numbers.append(half(data[108:110]) * f(scale) * f(q))
        elif kind in ("Q4_K", "Q5_K"):
            start = 16 if kind == "Q4_K" else 48
            pair, half_of = divmod(i, 64)
            q = data[start + 32 * pair + half_of % 32] >> 4 * (half_of // 32) & 15
            if kind == "Q5_K":
                q |= (data[16 + i % 32] >> (i // 32) & 1) << 4
            scale, least = scale_and_min(data[4:16], i // 32)
            d, m = half(data[:2]), half(data[2:4])
            numbers.append(d * f(scale) * f(q) - m * f(least))
        else:
            low = data[64 * chunk + within % 64] >> 4 * (within // 64) & 15
            top = data[128 + 32 * chunk + within % 32] >> 2 * (within // 32) & 3
            [scale] = struct.unpack("b", data[192 + i // 16 : 193 + i // 16])
            numbers.append(half(data[208:210]) * f(scale) * f((low | top << 4) - 32))
    return numbers


def drawn(kind: str, n: int) -> Tensor:
    """Random blocks whose halves are numbers."""
    n_bytes = BLOCKS[kind][1]
    blocks = torch.randint(256, (n, n_bytes), dtype=torch.uint8)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
    usual = (0, 2) if kind.endswith("_1") else (0,)
    for at in places.get(kind, usual):
        blocks[:, at : at + 2] = torch.randn(n, 1).half().view(torch.uint8)
    return blocks


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_block_is_its_definition_bit_for_bit(kind: str) -> None:
    size, _, read = BLOCKS[kind]
    blocks = drawn(kind, 3)
    by_loop = of_32 if size == 32 else of_256
    expected = np.array([by_loop(kind, bytes(block.tolist())) for block in blocks])
    assert torch.equal(read(blocks), torch.from_numpy(expected))


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_equal_those_of_the_gguf_package(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    from gguf.quants import dequantize

    blocks = drawn(kind, 300)
    expected = dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind])
    assert torch.equal(BLOCKS[kind][2](blocks), torch.from_numpy(expected))
