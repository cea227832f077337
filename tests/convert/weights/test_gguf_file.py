"""GGUF files: what is read, and that every damage is one message with the file."""

import struct
from pathlib import Path
from typing import Any

import pytest
import torch

from addnorm.convert.weights.gguf_file import GGUF, is_gguf
from addnorm.errors import InputError


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def written(
    file: Path,
    keys: dict[str, bytes] | None = None,
    tensors: list[tuple[str, tuple[int, ...], int, bytes]] | None = None,
    magic: bytes = b"GGUF",
    version: int = 3,
) -> Path:
    """A file of these keys, each its type with its value, and tensors."""
    keys, tensors = keys or {}, tensors or []
    head = magic + struct.pack("<IQQ", version, len(tensors), len(keys))
    head += b"".join(text(key) + value for key, value in keys.items())
    data = b""
    for name, shape, kind, content in tensors:
        sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])
        head += text(name) + sizes + struct.pack("<IQ", kind, len(data))
        data += content + bytes(-len(content) % 32)
    file.write_bytes(head + bytes(-len(head) % 32) + data)
    return file


NUMBER = struct.pack("<II", 4, 7)
TEXT = struct.pack("<I", 8) + text("héllo")
TEXTS = struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc")
NUMBERS = struct.pack("<IIQ3f", 9, 6, 3, 1.0, 2.0, 0.5)
MATRIX = ("w", (2, 3), 0, struct.pack("<6f", *range(6)))


def test_keys_and_tensors_are_read(tmp_path: Path) -> None:
    keys = {"a.n": NUMBER, "a.t": TEXT, "a.ts": TEXTS, "a.fs": NUMBERS}
    halves = ("h", (1, 4), 1, struct.pack("<4e", 1, 2, 3, 4))
    blocks = ("q", (2, 32), 8, 2 * (struct.pack("<e", 0.5) + bytes(range(32))))
    file = GGUF.open(written(tmp_path / "x.gguf", keys, [MATRIX, halves, blocks]))
    assert file.required("a.n", int) == 7
    assert file.get("a.n", 0.0) == 7.0
    assert file.get("a.t", "") == "héllo"
    assert file.texts("a.ts") == ["a", "bc"]
    assert file.numbers("a.fs", 3) == [1.0, 2.0, 0.5]
    assert file.tensors["w"].read().tolist() == [[0, 1, 2], [3, 4, 5]]
    assert file.tensors["h"].read().dtype == torch.float16
    assert file.tensors["q"].read()[1].tolist() == [i / 2 for i in range(32)]
    assert file.kinds() == "1 in F16, 1 in F32, 1 in Q8_0"
    assert is_gguf(file.path)
    file.check_all_read("a.")


def big(n: int) -> bytes:
    return struct.pack("<IIQ", 9, 8, n)


FLAWS: dict[str, tuple[dict[str, Any], str]] = {
    "magic": ({"magic": b"GGML"}, "not a GGUF file: it begins with b'GGML'"),
    "version": ({"version": 1}, "version 1 of GGUF, only 2 and 3"),
    "a type that is not read": (
        {"tensors": [("w", (1, 256), 23, bytes(136))]},
        r"tensor 'w' is of type IQ4_XS, which is not read\..*Q4_K",
    ),
    "an unknown type": ({"tensors": [("w", (1, 256), 77, bytes(136))]}, ".* of type 77, which"),
    "no whole blocks": (
        {"tensors": [("w", (1, 33), 8, bytes(64))]},
        ".* rows of 33, not blocks",
    ),
    "cut data": ({"tensors": [("w", (2, 30), 0, bytes(8))]}, "cut short: the data of 'w' end at"),
    "many texts": ({"keys": {"a": big(2**60)}}, "damaged: .* texts in a, at most"),
    "an unknown value": (
        {"keys": {"a": struct.pack("<I", 99)}},
        "damaged: the key 'a' has a value",
    ),
    "two of one name": ({"tensors": [MATRIX, MATRIX]}, "damaged: two tensors have one"),
    "too large": (
        {"tensors": [("w", (2**40, 2**40), 0, bytes(8))]},
        "damaged: tensor 'w' has the shape",
    ),
}


@pytest.mark.parametrize(("parts", "expected"), FLAWS.values(), ids=FLAWS)
def test_a_flaw_is_named(parts: dict[str, Any], expected: str, tmp_path: Path) -> None:
    file = written(tmp_path / "x.gguf", **parts)
    with pytest.raises(InputError, match=rf"x\.gguf: {expected}"):
        GGUF.open(file)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "x.gguf", {"a.t": TEXT, "a.ts": TEXTS}, [MATRIX]).read_bytes()
    end = len(whole) - 8  # the padding after the data may be cut
    for n in range(0, end, 3):
        (tmp_path / "cut.gguf").write_bytes(whole[:n])
        with pytest.raises(InputError, match=r"cut\.gguf"):
            GGUF.open(tmp_path / "cut.gguf")


def test_keys_of_another_type_and_unread_ones_are_named(tmp_path: Path) -> None:
    file = GGUF.open(written(tmp_path / "x.gguf", {"a.n": NUMBER, "a.t": TEXT}))
    with pytest.raises(InputError, match=r"a\.t = 'héllo' must be of type int"):
        file.required("a.t", int)
    with pytest.raises(InputError, match=r"the key a\.m is missing\. Valid: a\.n"):
        file.required("a.m", int)
    with pytest.raises(InputError, match=r"a\.ts is missing"):
        file.texts("a.ts")
    with pytest.raises(InputError, match=r"a\.n = 7 is not supported: nothing here reads it"):
        file.check_all_read("a.")
