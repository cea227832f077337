"""Tensors in safetensors files: each whole in one file, or in pieces from several processes.

The header of a file of pieces has the first index of each piece in its whole, as that of torch's
`HuggingFaceStorageWriter(save_distributed=True)` has. That writer itself needs `DTensor`s, which
pieces of heads and of stages are not, and writes by collectives of its own planner; the two
functions that are needed of it are shorter than the code that would call it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from addnorm.atomic import write_tensors
from addnorm.errors import InputError

STARTS, START = "DCP_SHARDING_INFO", "saved_offsets"
"""The keys of torch's distributed checkpoints for the first indices of pieces."""
VERSION = {"DCP_VERSION": "1.0"}


@dataclass(frozen=True)
class SavedTensor:
    """A tensor to save: the whole, or one process's piece of it."""

    tensor: Tensor
    start: tuple[int, ...] | None = None
    """The first index of a piece on each axis of its whole."""


Tensors = Mapping[str, Mapping[str, SavedTensor]]
"""Groups of tensors by name."""


def write_saved(file: Path, tensors: Mapping[str, SavedTensor]) -> None:
    """Write tensors to a safetensors file; for pieces, also where they begin."""
    starts = {
        name: {START: saved.start} for name, saved in tensors.items() if saved.start is not None
    }
    metadata = {STARTS: json.dumps(starts), **VERSION} if starts else None
    write_tensors(file, {name: saved.tensor for name, saved in tensors.items()}, metadata)


class StoredTensors(Mapping[str, Tensor]):
    """The tensors of some files by name, each read and joined on access.

    A file is open only meanwhile, since what was read of an open one stays in memory.
    """

    def __init__(self, files: Sequence[Path]) -> None:
        self._pieces: dict[str, list[tuple[Path, tuple[int, ...]]]] = {}
        self._folder = files[0].parent if files else Path()
        for file in files:
            with safe_open(file, "pt") as stored:
                starts = json.loads((stored.metadata() or {}).get(STARTS, "{}"))
                for name in stored.keys():  # noqa: SIM118
                    start = starts.get(name, {START: ()})[START]
                    self._pieces.setdefault(name, []).append((file, start))

    def __iter__(self) -> Iterator[str]:
        return iter(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def __getitem__(self, name: str) -> Tensor:
        """Read the whole tensor. Raises `InputError` if a piece of it is missing."""
        pieces = [(_read(file, name), start) for file, start in self._pieces[name]]
        first = pieces[0][0]
        if len(pieces) == 1 and not any(pieces[0][1]):
            return first
        ends = [[n + i for n, i in zip(t.shape, start, strict=True)] for t, start in pieces]
        whole = first.new_empty([max(axis) for axis in zip(*ends, strict=True)])
        if sum(piece.numel() for piece, _ in pieces) != whole.numel():
            raise InputError(f"{self._folder}: a piece of {name} is missing")
        for piece, start in pieces:
            part = whole
            for axis, (first_index, n) in enumerate(zip(start, piece.shape, strict=True)):
                part = part.narrow(axis, first_index, n)
            part.copy_(piece)
        return whole


def _read(file: Path, name: str) -> Tensor:
    with safe_open(file, "pt") as stored:
        return stored.get_tensor(name)
