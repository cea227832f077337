"""Memory-mapping weight files: safetensors with a validated header or, on request, a pickle.

A safetensors file has the header length n (8 bytes, little-endian), a JSON object of n bytes, and
the data.
"""

import json
import math
import mmap
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Any, BinaryIO
from warnings import warn
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from addnorm.errors import IgnoredSettings, InputError, nearest
from addnorm.files import SETTINGS, check_regular, read_file

MAX_HEADER = 32_000_000
"""In bytes. The format allows 100 MB, which may take a gigabyte to parse."""
MAX_TENSORS = 200_000
"""The maximum number of tensors (60 layers × 256 experts × 3 matrices with scales are 92,160)."""
MAX_RANK = 64
"""torch's maximum number of dimensions."""
TOO_LARGE = 2**63
"""torch counts elements and bytes in signed 64-bit integers."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a file; `begin` and `end` count bytes from the start of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def read_header(stream: BinaryIO, file: Path) -> dict[str, Entry]:
    """The tensor entries in a safetensors file's header, in their order.

    Raises `InputError` unless the tensors are contiguous, complete and fill the file.
    """
    size = os.fstat(stream.fileno()).st_size
    start = stream.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8:
        raise InputError(f"{file}: truncated: expected a header, has {size} bytes")
    if start == b"version ":
        raise InputError(f"{file}: a Git LFS pointer, not the weights: run `git lfs pull`")
    if length > MAX_HEADER:
        raise InputError(
            f"{file}: not a safetensors file: a header of {length} bytes, at most {MAX_HEADER}"
        )
    if 8 + length > size:
        raise InputError(f"{file}: truncated: expected {8 + length} bytes or more, has {size}")
    tree = parse_object(stream.read(length), file)
    _check_metadata(tree.pop("__metadata__", {}), file)
    entries = {name: _entry(name, value, 8 + length, file) for name, value in tree.items()}
    _check_layout(entries, 8 + length, size, file)
    return entries


def parse_object(text: bytes, file: Path) -> dict[str, Any]:
    """Parse `text` as a single JSON object.

    Raises `InputError` for anything else, for duplicate keys, and for more elements than
    `MAX_TENSORS` tensors need, since parsed JSON can take many times the memory of its text.
    """
    if not text.startswith(b"{"):
        raise InputError(f"{file}: damaged: expected a JSON object, got {text[:20]!r}")
    if sum(map(text.count, (b"{", b"[", b","))) > 10 * MAX_TENSORS:
        raise InputError(f"{file}: more in it than {MAX_TENSORS} tensors, the limit, could need")
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=_once, parse_constant=float)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: damaged: {error}") from error


def read_object(file: Path, most: int = SETTINGS) -> dict[str, Any]:
    """Read a file with a single JSON object of at most `most` bytes (see `parse_object`)."""
    try:
        return parse_object(read_file(file, most), file)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{file}: missing") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_TENSORS:
        raise ValueError(f"{len(pairs)} names in one object, at most {MAX_TENSORS}")
    tree: dict[str, Any] = {}
    for name, value in pairs:
        if name in tree:
            raise ValueError(f"{name!r:.100} is there twice")
        for text in (name, value):
            if isinstance(text, str):
                text.encode("utf-8")  # refuses lone surrogates
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, float) and not math.isfinite(number):
                raise ValueError(f"{name!r:.100}: {json.dumps(number)} is not JSON")
        tree[name] = value
    return tree


def _check_metadata(metadata: Any, file: Path) -> None:
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise InputError(f"{file}: __metadata__ is not of text alone: {metadata!r:.100}")


def _entry(name: str, value: Any, start: int, file: Path) -> Entry:
    where = f"{file}: tensor {name!r:.100}"
    match value:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [begin, end], **others}:
            pass
        case _:
            raise InputError(f"{where}: no dtype, shape and two data_offsets: {value!r:.100}")
    if others:
        raise InputError(f"{where}: unknown fields: {list(others)!r:.100}")
    if kind not in DTYPES:
        raise InputError(f"{where}: unknown dtype {kind!r:.100}.{nearest(kind[:20], DTYPES)}")
    if not _are_sizes(shape) or len(shape) > MAX_RANK:
        raise InputError(f"{where}: a shape is {MAX_RANK} sizes at most, got {shape!r:.100}")
    if not _are_sizes([begin, end]) or begin > end:
        raise InputError(f"{where}: data_offsets {[begin, end]!r:.100} are not a span of bytes")
    dtype = DTYPES[kind]
    if dtype.itemsize * math.prod(size for size in shape if size) >= TOO_LARGE:
        raise InputError(f"{where}: shape {shape!r:.100} is too large")
    if (needed := dtype.itemsize * math.prod(shape)) != end - begin:
        raise InputError(
            f"{where}: {kind} of shape {shape!r:.100} takes {needed} bytes, "
            f"its data_offsets {[begin, end]} span {end - begin}"
        )
    return Entry(dtype, tuple(shape), start + begin, start + end)


def _are_sizes(sizes: list[Any]) -> bool:
    return all(type(size) is int and 0 <= size < TOO_LARGE for size in sizes)


def _check_layout(entries: dict[str, Entry], start: int, size: int, file: Path) -> None:
    last = max((entry.end for entry in entries.values()), default=start)
    if last > size:
        raise InputError(f"{file}: truncated: expected {last} bytes, has {size}")
    at = start
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != at:
            how = "overlaps another" if entry.begin < at else f"follows {entry.begin - at} unused"
            raise InputError(
                f"{file}: tensor {name!r:.100} {how}: it begins at byte {entry.begin}, not {at}"
            )
        at = entry.end
    if at != size:
        raise InputError(f"{file}: its tensors end at byte {at}, but it has {size}")


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: its shape, its dtype, and a function to read it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def map_safetensors(file: Path) -> dict[str, StoredTensor]:
    """Memory-map the tensors of a safetensors file without reading them.

    The mapping is private: writes to a tensor stay in memory. Raises `InputError` if the file is
    incomplete or damaged.
    """
    try:
        check_regular(file)
        with file.open("rb") as stream:
            entries = read_header(stream, file)
            memory = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    return {
        name: StoredTensor(entry.shape, entry.dtype, partial(_view, memory, entry))
        for name, entry in entries.items()
    }


def _view(memory: mmap.mmap, entry: Entry) -> Tensor:
    if entry.begin == entry.end:
        return torch.empty(entry.shape, dtype=entry.dtype)
    length = entry.end - entry.begin
    data = torch.frombuffer(memory, dtype=torch.uint8, count=length, offset=entry.begin)
    if entry.begin % entry.dtype.itemsize:
        data = data.clone()  # kernels need aligned data, which some old files lack
    return data.view(entry.dtype).view(entry.shape)


def map_pickle(file: Path) -> dict[str, StoredTensor]:
    """Load a file written by `torch.save`; its pickle may hold only tensors and plain containers.

    Raises `InputError` if it contains anything else, is compressed, or is damaged.
    """
    try:
        with ZipFile(file) as archive:
            packed = any(member.compress_type for member in archive.infolist())
        # Compressed data may expand to any size, and torch.save never compresses.
        content = None if packed else torch.load(file, "cpu", weights_only=True, mmap=True)
    except BadZipFile as error:
        raise InputError(f"{file}: damaged, or of torch before 1.6: {error}") from error
    except Exception as error:  # any error is possible for an untrusted file
        raise InputError(f"{file}: refused: it is damaged or holds more than tensors") from error
    if not isinstance(content, dict):
        what = "compressed" if packed else f"not a dictionary but {type(content).__name__}"
        raise InputError(f"{file}: {what}: expected tensors by name, as torch.save writes them")
    return {name: _stored(name, value, file) for name, value in content.items()}


def _stored(name: object, value: object, file: Path) -> StoredTensor:
    if not isinstance(name, str) or not isinstance(value, Tensor):
        raise InputError(f"{file}: {name!r:.100} is not a tensor but {type(value).__name__}")
    if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
        raise InputError(f"{file}: tensor {name!r:.100} is sparse, quantised or without data")
    tensor = value.detach()
    return StoredTensor(tuple(tensor.shape), tensor.dtype, lambda: tensor)


READABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""The supported types. Weights of fewer bits have scales or a special layout."""

SHOWN = 3
"""The most weights of one type that the warning names."""


def check_readable(where: object, name: str, dtype: torch.dtype) -> None:
    """Raise `InputError` for a weight with an unsupported dtype."""
    if dtype not in READABLE:
        valid = ", ".join(map(name_of, READABLE))
        raise InputError(
            f"{where}: {name} holds {name_of(dtype)}, which is not read as weights: store it in "
            f"one of {valid}"
        )


def one_dtype(
    where: object, stored: Mapping[str, torch.dtype], named: object = None
) -> torch.dtype:
    """The dtype to which weights of these dtypes are converted.

    If they differ, it is the type that the configuration has `named`, as in transformers, or else
    the widest, which rounds nothing; a warning names it.
    """
    kinds = dict.fromkeys(stored.values())
    if len(kinds) < 2:
        return next(iter(kinds), torch.float32)
    wanted = next((dtype for dtype in READABLE if name_of(dtype) == named), None)
    chosen = reduce(torch.promote_types, kinds) if wanted is None else wanted
    why = "the widest" if wanted is None else "the dtype of its config.json"
    counts = ", ".join(_counted(stored, dtype) for dtype in kinds)
    warn(
        f"{where}: weights of several types ({counts}): all are read in {name_of(chosen)}, {why}; "
        "another dtype may be given",
        IgnoredSettings,
        stacklevel=2,
    )
    return chosen


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype, such as `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def _counted(stored: Mapping[str, torch.dtype], dtype: torch.dtype) -> str:
    names = [name for name, other in stored.items() if other == dtype]
    few = f": {', '.join(names)}" if len(names) <= SHOWN else ""
    return f"{len(names)} in {name_of(dtype)}{few}"
