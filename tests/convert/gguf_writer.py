"""Writing GGUF files by the description of the format (ggml's `docs/gguf.md`), with any keys."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ALIGNMENT = 32
F32 = 0

Value = bool | int | float | str | list[Any]


def write_gguf(file: Path, keys: Mapping[str, Value], tensors: Mapping[str, Tensor]) -> None:
    """Version 3, with the tensors in float32."""
    data, infos = bytearray(), bytearray()
    for name, tensor in tensors.items():
        data += bytes(-len(data) % ALIGNMENT)
        infos += _text(name) + struct.pack("<I", tensor.ndim)
        infos += struct.pack(f"<{tensor.ndim}Q", *reversed(tensor.shape))
        infos += struct.pack("<IQ", F32, len(data))
        data += tensor.detach().to(torch.float32).contiguous().numpy().tobytes()
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(_text(key) + _value(value) for key, value in keys.items()) + infos
    file.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _value(value: Value) -> bytes:
    """The number of a type, and a value of it."""
    if isinstance(value, list):
        kinds = [_value(item) for item in value]
        items = b"".join(kind[4:] for kind in kinds)
        return struct.pack("<I", 9) + kinds[0][:4] + struct.pack("<Q", len(value)) + items
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<Ii" if value < 0 else "<II", 5 if value < 0 else 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
