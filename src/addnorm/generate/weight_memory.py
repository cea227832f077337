"""Where the weights of a compiled graph are: contiguous, and on huge pages if they are many."""

import mmap
from collections.abc import Iterable
from itertools import chain, pairwise
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from addnorm.machine import available_memory, huge_pages

MANY = 2**26
"""Bytes of weights from which they move: a processor's caches hold most of a smaller model."""

ALIGNMENT = 64
"""Every tensor begins at a multiple of this many bytes, the line of a cache."""

_blocks: WeakKeyDictionary[mmap.mmap, range] = WeakKeyDictionary()
"""The addresses of each block of huge pages that tensors are in."""


def lay_out(module: nn.Module) -> None:
    """Make the parameters and buffers contiguous, and move them to huge pages if they are many.

    A graph goes by shapes alone. It reads every weight for each token, and a processor waits less
    for memory if its pages are 2 MiB, not 4 KiB (`docs/speed.md`). Tensors that are the same memory
    stay so; those that overlap in part, or that processes share, stay where they are. The module is
    as it was, apart from where its tensors are: they are no longer views of any other tensor.
    """
    tensors = [*chain(module.parameters(), module.buffers())]
    with torch.inference_mode(mode=False), torch.no_grad():  # or they could not be trained later
        _make_contiguous(tensors)
        regions = _regions(tensors)
        size = sum(-(-n // ALIGNMENT) * ALIGNMENT for _, n in regions)
        if MANY <= size <= available_memory() and _are_disjoint(regions):
            _move(regions, size)


def _make_contiguous(tensors: Iterable[Tensor]) -> None:
    """Copy tensors in another order, each region once."""
    copies: dict[object, Tensor] = {}
    for tensor in tensors:
        if not tensor.is_contiguous():
            key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            tensor.data = copies.setdefault(key, tensor.data.contiguous())


Regions = dict[tuple[int, int], list[Tensor]]
"""The tensors at an address, with a size in bytes."""


def _regions(tensors: Iterable[Tensor]) -> Regions:
    """The memory of tensors that are not on huge pages yet."""
    regions: Regions = {}
    for tensor in tensors:
        plain = tensor.is_cpu and tensor.layout is torch.strided
        if plain and tensor.nbytes and not tensor.is_shared():
            at = tensor.data_ptr()
            if not any(at in block for block in _blocks.values()):
                regions.setdefault((at, tensor.nbytes), []).append(tensor)
    return regions


def _are_disjoint(regions: Iterable[tuple[int, int]]) -> bool:
    return all(at + n <= following for (at, n), (following, _) in pairwise(sorted(regions)))


def _move(regions: Regions, size: int) -> None:
    """Copy each region once. Nothing happens where there are no huge pages."""
    if (block := huge_pages(size)) is None:
        return
    memory, place = block
    start = torch.frombuffer(memory, dtype=torch.uint8).data_ptr()
    _blocks[memory] = range(start, start + len(memory))
    for (_, n), tensors in regions.items():
        # Each region is a storage of its own, as it would be without the block.
        new = torch.frombuffer(memory, dtype=torch.uint8, count=n, offset=place)
        new.view(tensors[0].dtype).view(tensors[0].shape).copy_(tensors[0].data)
        for tensor in tensors:
            tensor.data = new.view(tensor.dtype).view(tensor.shape)
        place += -(-n // ALIGNMENT) * ALIGNMENT
