"""Blocks of GGUF: read back by its own library they are the numbers that went in."""

from typing import Any

import numpy as np
import pytest
import torch

from addnorm.convert.exporters.gguf_blocks import add_quantized, q4_0, q8_0
from addnorm.errors import InputError

gguf = pytest.importorskip("gguf")


class Written:
    """What a writer is given."""

    def __init__(self) -> None:
        self.tensors: dict[str, tuple[Any, Any]] = {}

    def add_tensor(self, name: str, data: Any, raw_dtype: Any = None) -> None:
        self.tensors[name] = (data, raw_dtype)

    def read(self, name: str) -> torch.Tensor:
        data, kind = self.tensors[name]
        return torch.from_numpy(np.array(gguf.quants.dequantize(data, kind)))


@pytest.mark.parametrize("blocks", [1, 3])
@pytest.mark.parametrize("kind", ["q8_0", "q4_0"])
def test_read_back_by_gguf(kind: str, blocks: int) -> None:
    most = 127 if kind == "q8_0" else 7
    whole = torch.randint(-most - 1, most + 1, (5, 32 * blocks))
    scale = (torch.randn(5, blocks).half().float()).repeat_interleave(32, 1)
    written = Written()
    add_quantized(written, "w", whole * scale, scale, kind)
    assert torch.equal(written.read("w"), whole * scale)
    assert written.tensors["w"][0].shape == (5, blocks * (34 if kind == "q8_0" else 18))


def test_the_layout_of_a_block() -> None:
    """4 bits: the first sixteen numbers are in the lower halves, the others in the upper."""
    whole = torch.zeros(1, 1, 32, dtype=torch.int8)
    whole[..., 0], whole[..., 16] = -8, 7
    scale = torch.ones(1, 1).half()
    assert q4_0(whole, scale)[0, 0].tolist() == [0x00, 0x3C, 0xF0] + 15 * [0x88]
    assert q8_0(whole, scale)[0, 0, :3].tolist() == [0x00, 0x3C, 256 - 8]


def test_what_is_no_quantised_matrix_is_float32() -> None:
    written = Written()
    add_quantized(written, "norm.weight", torch.ones(32), torch.ones(32), "q8_0")
    add_quantized(written, "kept", torch.ones(2, 32), torch.zeros(2, 32), "q8_0")
    add_quantized(written, "position_embd.weight", torch.ones(2, 32), torch.ones(2, 32), "q8_0")
    assert all(kind is None for _, kind in written.tensors.values())


@pytest.mark.parametrize(
    ("columns", "scale", "says"),
    [
        (33, 1.0, "blocks of 32 numbers, and w rows of 33"),
        (32, 1e-8, "too coarse for w"),
        (32, 1e6, "too coarse for w"),
    ],
)
def test_what_gguf_cannot_hold(columns: int, scale: float, says: str) -> None:
    with pytest.raises(InputError, match=says):
        add_quantized(
            Written(), "w", torch.ones(2, columns) * scale, torch.full((2, columns), scale), "q8_0"
        )


def test_a_part_that_was_kept() -> None:
    scale = torch.ones(4, 32)
    scale[2:] = 0.0
    with pytest.raises(InputError, match="one type for all of w"):
        add_quantized(Written(), "w", torch.ones(4, 32), scale, "q4_0")
