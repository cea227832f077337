"""GGUF files: their keys, and their tensors, memory-mapped and dequantised on reading.

A file has the magic `GGUF`, a version, the numbers of tensors and keys, the keys, the table of
tensors, and their data, aligned (ggml's `docs/gguf.md`). It is not trusted: every count, offset and
size is checked against the bytes that are there.
"""

import math
import mmap
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from addnorm.convert.weights.gguf_blocks import BLOCKS
from addnorm.convert.weights.mapped import MAX_RANK, MAX_TENSORS, TOO_LARGE, StoredTensor
from addnorm.errors import InputError, choices
from addnorm.files import check_regular

T = TypeVar("T", int, float, str, bool)

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 2**16
MAX_ALIGNMENT = 2**16

PLAIN = {
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F64": torch.float64,
}
"""Types whose numbers stand as they are."""

TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
"""ggml's numbers of types."""

READ = (*PLAIN, *BLOCKS)
"""The types that are read."""

NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9
"""The types of values: numbers by their form in `struct`, strings and arrays."""


def is_gguf(file: Path) -> bool:
    """Whether this is a GGUF file, by its name or its first bytes."""
    if not file.is_file():
        return False
    if file.suffix == ".gguf":
        return True
    with file.open("rb") as stream:
        return stream.read(4) == MAGIC


@dataclass(frozen=True)
class GGUF:
    """The keys and tensors of a file, and each tensor's storage type."""

    path: Path
    keys: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    types: Mapping[str, str]
    _read: set[str] = field(default_factory=set[str])

    @classmethod
    def open(cls, path: Path) -> "GGUF":
        """Memory-map a file.

        Raises `InputError` where it is cut short or damaged, or has another type.
        """
        try:
            check_regular(path)
            with path.open("rb") as stream:
                start = stream.read(4)
                if start != MAGIC:
                    raise InputError(
                        f"{path}: not a GGUF file: it begins with {start!r}, not {MAGIC!r}"
                    )
                memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror}") from error
        return _parsed(path, memory)

    @property
    def architecture(self) -> str:
        """The name of the architecture."""
        return self.required("general.architecture", str)

    def kinds(self) -> str:
        """The types of the tensors and how many there are of each: `3 in F32, 8 in Q4_K`."""
        counts = Counter(self.types.values())
        return ", ".join(f"{n:,} in {kind}" for kind, n in sorted(counts.items()))

    def required(self, key: str, kind: type[T]) -> T:
        """The value of a key. Raises `InputError` where it is missing, or of another type."""
        if key not in self.keys:
            raise InputError(f"{self.path}: the key {key} is missing.{choices(key, self.keys)}")
        return self.get(key, kind())

    def get(self, key: str, default: T) -> T:
        """The value of a key, which must have the type of the default.

        Raises `InputError` for another type.
        """
        self._read.add(key)
        value = self.keys.get(key, default)
        if isinstance(default, float) and type(value) is int:
            return float(value)
        if type(value) is not type(default):
            raise InputError(
                f"{self.path}: {key} = {value!r:.60} must be of type {type(default).__name__}"
            )
        return value

    def texts(self, key: str) -> list[str]:
        """The list of texts under a key. Raises `InputError` where it is missing or another."""
        self._read.add(key)
        value = self.keys.get(key)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            problem = "is missing" if value is None else "must be a list of texts"
            raise InputError(f"{self.path}: {key} {problem}")
        return value

    def numbers(self, key: str, n: int) -> list[float]:
        """The list of `n` numbers under a key. Raises `InputError` for any other."""
        self._read.add(key)
        value = self.keys.get(key)
        if not isinstance(value, list) or len(value) != n:
            raise InputError(f"{self.path}: {key} must be a list of {n:,} numbers")
        return value

    def ignore(self, *keys: str) -> None:
        """Count keys as read, because their values have no effect here."""
        self._read.update(keys)

    def check_all_read(self, prefix: str = "") -> None:
        """Raise `InputError` naming a key with this prefix that was never read."""
        for key, value in self.keys.items():
            if key.startswith(prefix) and key not in self._read and value not in (0, False, "", []):
                raise InputError(
                    f"{self.path}: {key} = {value!r:.60} is not supported: nothing here reads it"
                )


class _Reader:
    """Reads values one after another; raises `InputError` at the end of the file."""

    def __init__(self, path: Path, memory: mmap.mmap) -> None:
        self.path, self.memory, self.at = path, memory, 0

    def skip(self, n: int) -> int:
        """Advance by `n` bytes; return the position before."""
        begin = self.at
        if n < 0 or begin + n > len(self.memory):
            raise InputError(
                f"{self.path}: cut short: expected {begin + n:,} bytes or more, has "
                f"{len(self.memory):,}"
            )
        self.at = begin + n
        return begin

    def number(self, form: str) -> Any:
        """Read a number in a `struct` format."""
        begin = self.skip(struct.calcsize(f"<{form}"))
        return struct.unpack_from(f"<{form}", self.memory, begin)[0]

    def count(self, most: int, what: str) -> int:
        """Read a count. Raises `InputError` for more than `most`."""
        n = self.number("Q")
        if n > most:
            raise InputError(f"{self.path}: damaged: {n:,} {what}, at most {most:,}")
        return n

    def text(self) -> str:
        """Read a string."""
        n = self.number("Q")
        begin = self.skip(n)
        return self.memory[begin : begin + n].decode("utf-8", "replace")

    def value(self, kind: int, key: str) -> Any:
        """Read a value of a type, given by ggml's number."""
        if kind in NUMBERS:
            return self.number(NUMBERS[kind])
        if kind == STRING:
            return self.text()
        inner = self.number("I") if kind == ARRAY else None
        if inner in NUMBERS:
            n, form = self.number("Q"), NUMBERS[inner]
            begin = self.skip(n * struct.calcsize(f"<{form}"))
            return list(struct.unpack_from(f"<{n}{form}", self.memory, begin))
        if inner == STRING:
            n = self.count(len(self.memory) // 8, f"texts in {key}")
            return [self.text() for _ in range(n)]
        raise InputError(f"{self.path}: damaged: the key {key!r:.100} has a value of type {kind}")


def _parsed(path: Path, memory: mmap.mmap) -> GGUF:
    reader = _Reader(path, memory)
    reader.skip(4)
    version = reader.number("I")
    if version not in VERSIONS:
        raise InputError(f"{path}: version {version} of GGUF, only {VERSIONS[0]} and {VERSIONS[1]}")
    n_tensors = reader.count(MAX_TENSORS, "tensors")
    n_keys = reader.count(MAX_KEYS, "keys")
    keys: dict[str, Any] = {}
    for _ in range(n_keys):
        key = reader.text()
        if key in keys:
            raise InputError(f"{path}: damaged: the key {key!r:.100} is there twice")
        keys[key] = reader.value(reader.number("I"), key)
    infos = dict(_info(reader) for _ in range(n_tensors))
    if len(infos) < n_tensors:
        raise InputError(f"{path}: damaged: two tensors have one name")
    alignment = keys.get("general.alignment", 32)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT:
        raise InputError(f"{path}: general.alignment = {alignment!r} must be from 1 to 65,536")
    start = -(-reader.at // alignment) * alignment
    tensors = {
        name: _tensor(path, memory, name, start + offset, shape, kind)
        for name, (shape, kind, offset) in infos.items()
    }
    return GGUF(path, keys, tensors, {name: kind for name, (_, kind, _) in infos.items()})


def _info(reader: _Reader) -> tuple[str, tuple[tuple[int, ...], str, int]]:
    """Read a tensor's name, its shape in our order, its type and its position."""
    name = reader.text()
    rank = reader.number("I")
    if rank > MAX_RANK:
        raise InputError(f"{reader.path}: damaged: tensor {name!r:.100} has {rank:,} dimensions")
    shape = tuple(reader.number("Q") for _ in range(rank))[::-1]
    number = reader.number("I")
    kind = TYPES.get(number, str(number))
    if kind not in READ:
        raise InputError(
            f"{reader.path}: tensor {name!r:.100} is of type {kind}, which is not read."
            f"{choices(kind, READ)}"
        )
    if math.prod(size for size in shape if size) >= TOO_LARGE // 8:
        raise InputError(f"{reader.path}: damaged: tensor {name!r:.100} has the shape {shape}")
    return name, (shape, kind, reader.number("Q"))


def _tensor(
    path: Path, memory: mmap.mmap, name: str, begin: int, shape: tuple[int, ...], kind: str
) -> StoredTensor:
    size, n_bytes = (1, PLAIN[kind].itemsize) if kind in PLAIN else BLOCKS[kind][:2]
    if (shape[-1] if shape else 1) % size:
        raise InputError(
            f"{path}: tensor {name!r:.100} has rows of {shape[-1]}, not blocks of {size}"
        )
    length = math.prod(shape) // size * n_bytes
    if begin + length > len(memory):
        raise InputError(
            f"{path}: cut short: the data of {name!r:.100} end at byte {begin + length:,}, and the "
            f"file has {len(memory):,}"
        )
    if kind in PLAIN:
        dtype = PLAIN[kind]
        return StoredTensor(shape, dtype, partial(_plain, memory, begin, length, shape, dtype))
    read = partial(_dequantised, memory, begin, length, shape, BLOCKS[kind][2], n_bytes)
    return StoredTensor(shape, torch.float32, read)


def _bytes(memory: mmap.mmap, begin: int, length: int) -> Tensor:
    if not length:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(memory, dtype=torch.uint8, count=length, offset=begin)


def _plain(
    memory: mmap.mmap, begin: int, length: int, shape: tuple[int, ...], dtype: torch.dtype
) -> Tensor:
    data = _bytes(memory, begin, length)
    data = data.clone() if begin % dtype.itemsize else data  # kernels need aligned data
    return data.view(dtype).view(shape)


def _dequantised(
    memory: mmap.mmap,
    begin: int,
    length: int,
    shape: tuple[int, ...],
    read: Callable[[Tensor], Tensor],
    n_bytes: int,
) -> Tensor:
    return read(_bytes(memory, begin, length).view(-1, n_bytes)).view(shape)
