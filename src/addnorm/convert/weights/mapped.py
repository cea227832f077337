"""Memory-mapping a weight file: safetensors or, on request, a pickle of `torch.save`."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from addnorm.convert.weights.header import Entry, read_header
from addnorm.errors import InputError
from addnorm.files import check_regular


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
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    return {
        name: StoredTensor(entry.shape, entry.dtype, partial(_view, mapped, entry))
        for name, entry in entries.items()
    }


def _view(mapped: mmap.mmap, entry: Entry) -> Tensor:
    if entry.begin == entry.end:
        return torch.empty(entry.shape, dtype=entry.dtype)
    length = entry.end - entry.begin
    data = torch.frombuffer(mapped, dtype=torch.uint8, count=length, offset=entry.begin)
    if entry.begin % entry.dtype.itemsize:
        data = data.clone()  # kernels need aligned data, which some old files lack
    return data.view(entry.dtype).view(entry.shape)


def map_pickle(file: Path) -> dict[str, StoredTensor]:
    """Load a file of `torch.save`, allowing only tensors and plain containers in its pickle.

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
