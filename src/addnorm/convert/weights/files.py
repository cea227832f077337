"""Reading and writing the weight files of a Hugging Face folder.

`model.safetensors`, or shards `model-0000i-of-0000N.safetensors` with an index
`model.safetensors.index.json` that assigns tensors to shards. Files are not trusted: each is
validated before use, no other file is opened, and no pickle is read unless requested.
"""

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from addnorm.atomic import atomic_directory, write_tensors
from addnorm.convert.weights.mapped import (
    MAX_HEADER,
    StoredTensor,
    map_pickle,
    map_safetensors,
    read_object,
)
from addnorm.errors import InputError

SAFE = "model.safetensors"
PICKLED = "pytorch_model.bin"
INDEX = f"{SAFE}.index.json"
SHARDS = f"model-{'[0-9]' * 5}-of-{'[0-9]' * 5}.safetensors"

FOREIGN = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".gguf", ".msgpack", ".onnx")
"""File extensions of other weight formats."""


class Weights(Mapping[str, Tensor]):
    """The weights of a folder by name, as views of memory-mapped files.

    Data is read from disk lazily. Writing to a tensor changes all views of it in memory, but never
    the file, which must not shrink while a view is in use.
    """

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        self._stored = stored

    @classmethod
    def open(cls, folder: Path, *, pickled: bool = False) -> "Weights":
        """Memory-map the weights of `folder`; `pytorch_model.bin` (a pickle) only if `pickled`.

        Raises `InputError` naming a file or tensor that is missing, damaged, outside the folder, or
        inconsistent with the index.
        """
        if not folder.is_dir():
            raise InputError(f"{folder}: no such folder")
        kinds = {SAFE: map_safetensors} | ({PICKLED: map_pickle} if pickled else {})
        for name, map_file in kinds.items():
            if os.path.lexists(folder / name):
                return cls(map_file(_inside(folder, name)))
            if os.path.lexists(folder / f"{name}.index.json"):
                return cls(_map_shards(folder, f"{name}.index.json", map_file))
        raise _no_weights(folder, list(kinds))

    def __getitem__(self, name: str) -> Tensor:
        return self._stored[name].read()

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._stored[name].shape

    def stored(self, name: str) -> StoredTensor:
        """A tensor in its file, not yet read."""
        return self._stored[name]

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of a tensor."""
        return self._stored[name].dtype

    def without_values(self) -> "Weights":
        """The same names, shapes and dtypes, without values (on the meta device)."""
        return Weights(
            {
                name: replace(
                    stored,
                    read=partial(torch.empty, stored.shape, dtype=stored.dtype, device="meta"),
                )
                for name, stored in self._stored.items()
            }
        )

    @property
    def nbytes(self) -> int:
        """The total size of all tensors in bytes."""
        return sum(stored.nbytes for stored in self._stored.values())


def save_folder_weights(
    folder: Path, weights: Mapping[str, Tensor], *, max_shard_bytes: int = 50 * 10**9
) -> None:
    """Write the weights as `model.safetensors`, or as shards if they exceed `max_shard_bytes`.

    A crash leaves either the earlier or the new weights, never a mixture; if new shards have the
    names of earlier ones, it may leave them without an index, which is refused on loading. Earlier
    weights are removed once the new ones are in place.

    Raises `ValueError` if two tensors share memory: tied weights must be saved once.
    """
    tensors = dict(weights.items())
    _refuse_shared(tensors)
    files = _shards(tensors, max_shard_bytes)
    with atomic_directory(folder, (INDEX, SAFE, SHARDS), index=INDEX) as partial:
        for name, group in files.items():
            write_tensors(partial / name, group, {"format": "pt"})
        if len(files) > 1:
            _write_index(partial / INDEX, files)


def _map_shards(
    folder: Path, index: str, map_file: Callable[[Path], dict[str, StoredTensor]]
) -> dict[str, StoredTensor]:
    weight_map = _read_index(_inside(folder, index))
    listed: dict[str, set[str]] = defaultdict(set)
    for name, shard in weight_map.items():
        listed[shard].add(name)
    files = {shard: _inside(folder, shard) for shard in listed}
    tensors: dict[str, StoredTensor] = {}
    for shard, file in files.items():
        stored = map_file(file)
        _check_shard(folder / index, shard, weight_map, stored.keys(), listed[shard])
        tensors |= stored
    return {name: tensors[name] for name in weight_map}


def _read_index(file: Path) -> dict[str, str]:
    weight_map = read_object(file, MAX_HEADER).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InputError(f"{file}: weight_map lists no tensors: {weight_map!r:.100}")
    for name, shard in weight_map.items():
        if not isinstance(shard, str):
            raise InputError(f"{file}: tensor {name!r:.100}: {shard!r:.100} is not a file name")
    return weight_map


def _check_shard(
    index: Path, shard: str, weight_map: Mapping[str, str], has: Set[str], listed: Set[str]
) -> None:
    if absent := listed - has:
        raise InputError(f"{index}: tensor {min(absent)!r:.100} is not in {shard!r:.100}")
    if extra := has - listed:
        name = min(extra)
        place = f"in {weight_map[name]!r:.100}" if name in weight_map else "nowhere"
        raise InputError(
            f"{index}: tensor {name!r:.100} is in {shard!r:.100}, but by the index {place}"
        )


def _inside(folder: Path, name: str) -> Path:
    """The path of the file `name` in `folder`.

    Raises `InputError` if it is missing or outside the folder. Links from `snapshots/X` to the
    sibling folder `blobs` are allowed, as in the cache of huggingface_hub.
    """
    if name in ("", ".", "..") or set(name) & set("/\\:\0"):
        raise InputError(f"{folder}: {name!r:.100} is not the name of a file in this folder")
    file = folder / name
    try:
        home, real = folder.resolve(), file.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(f"{folder}: {name!r:.100} is missing or a broken link") from error
    cache = home.parent.parent / "blobs" if home.parent.name == "snapshots" else home
    if not (real.is_relative_to(home) or real.is_relative_to(cache)):
        raise InputError(f"{file}: a link out of this folder, to {real}")
    if not real.is_file():
        raise InputError(f"{file}: not a file")
    return file


def _no_weights(folder: Path, kinds: list[str]) -> InputError:
    searched = ", ".join(f"{kind}, {kind}.index.json" for kind in kinds)
    names = sorted(os.listdir(folder))
    others = [name for name in names if name.endswith(".safetensors")]
    foreign = [name for name in names if name.endswith(FOREIGN)]
    hint = ""
    if others:
        hint = f" It has {others[0]!r}: was it renamed, or is its index missing?"
    elif PICKLED not in kinds and {PICKLED, f"{PICKLED}.index.json"} & set(names):
        hint = f" It has {PICKLED}, a pickle: ask for it (pickled=True) if you trust its author."
    elif foreign:
        hint = (
            f" It has {foreign[0]!r}: write it as safetensors with the library that made it; "
            "in transformers, load it and call save_pretrained."
        )
    return InputError(f"{folder}: no weights: looked for {searched}.{hint}")


def _refuse_shared(tensors: Mapping[str, Tensor]) -> None:
    spans = sorted((str(t.device), t.data_ptr(), name) for name, t in tensors.items() if t.numel())
    for (device, _, name), (next_device, _, following) in pairwise(spans):
        if device == next_device and _overlap(tensors[name], tensors[following]):
            raise ValueError(f"{name!r} and {following!r} share memory: save it under one name")


def _overlap(first: Tensor, second: Tensor) -> bool:
    """Whether two tensors share a byte; `second` does not begin before `first`."""
    start, end = first.data_ptr(), max(_end(first), _end(second))
    if _end(first) <= second.data_ptr():
        return False
    if first.is_contiguous() and second.is_contiguous():
        return True
    marks = torch.zeros(end - start, dtype=torch.bool)

    def bytes_of(t: Tensor) -> Tensor:
        strides = [*(stride * t.itemsize for stride in t.stride()), 1]
        return marks.as_strided([*t.shape, t.itemsize], strides, t.data_ptr() - start)

    bytes_of(first).fill_(True)
    return bool(bytes_of(second).any())


def _end(t: Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return t.data_ptr() + (last + 1) * t.itemsize


def _shards(tensors: Mapping[str, Tensor], max_bytes: int) -> dict[str, dict[str, Tensor]]:
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if groups[-1] and size + tensor.nbytes > max_bytes:
            groups.append({})
            size = 0
        groups[-1][name] = tensor
        size += tensor.nbytes
    n = len(groups)
    if n == 1:
        return {SAFE: groups[0]}
    return {f"model-{i:05d}-of-{n:05d}.safetensors": group for i, group in enumerate(groups, 1)}


def _write_index(file: Path, files: Mapping[str, Mapping[str, Tensor]]) -> None:
    size = sum(tensor.nbytes for group in files.values() for tensor in group.values())
    weight_map = {tensor: name for name, group in files.items() for tensor in group}
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    file.write_text(json.dumps(index, indent=2), encoding="utf-8")
