"""Hand-made weight folders for tests, bit-exact comparison, and watching file access."""

import json
import os
import struct
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from addnorm.convert.weights.files import Weights, save_folder_weights
from addnorm.errors import InputError

Tree = dict[str, Any]
INDEX = "model.safetensors.index.json"
TENSORS = {
    "a.weight": torch.arange(6.0).view(2, 3),
    "b.bias": torch.arange(4, dtype=torch.bfloat16),
    "c": torch.tensor(5),
    "d.none": torch.zeros(0, 3),
}


def raw(tensor: Tensor) -> bytes:
    """The bytes of a tensor."""
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())


def same(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Equal bit for bit, NaN and all."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        assert raw(found[name]) == raw(tensor), name


def packed(header: bytes | Tree, data: bytes = b"") -> bytes:
    """A safetensors file of this header; a tree is padded, as writers do it, and text is not."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    if not isinstance(header, bytes):
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: str, shape: list[int], begin: int, end: int) -> Tree:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


_opened: list[str] | None = None


def _watch(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and _opened is not None:
        _opened.append(str(args[0]))


sys.addaudithook(_watch)


@contextmanager
def opened_files() -> Generator[list[str]]:
    """The paths that are opened meanwhile."""
    global _opened
    _opened = []
    try:
        yield _opened
    finally:
        _opened = None


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def in_shards(folder: Path, tensors: Mapping[str, Tensor] = TENSORS) -> Path:
    """One tensor in each shard."""
    save_folder_weights(folder, tensors, max_shard_bytes=0)
    return folder


def with_index(folder: Path, index: Any) -> Path:
    (folder / INDEX).write_text(index if isinstance(index, str) else json.dumps(index))
    return folder


def weight_map(folder: Path) -> dict[str, str]:
    return json.loads((folder / INDEX).read_text())["weight_map"]


def refused(folder: Path, message: str, *, pickled: bool = False) -> str:
    with pytest.raises(InputError) as caught:
        Weights.open(folder, pickled=pickled)
    assert str(folder) in str(caught.value)
    assert message in str(caught.value)
    return str(caught.value)


class Evil:
    """What pickle calls on loading it: it would make a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.canary),)
