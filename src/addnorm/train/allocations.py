"""Counting the bytes that tensors take while operations run, on tensors with or without values."""

import weakref
from collections.abc import Iterable
from itertools import count
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Within this, counts the bytes of every storage from its creation until it is freed.

    `live` are the bytes at the moment, `peak` the most so far, and `events` what happened: the key
    of a storage with its bytes, and with 0 when it is freed. Tensors that were there before are
    counted by `add`. What a kernel allocates for itself, and frees before it returns, is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self.events: list[tuple[int, int]] = []
        self._sizes: dict[int, int] = {}
        self._keys: dict[int, int] = {}
        self._count = count()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self.add(leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
        return out

    def add(self, tensors: Iterable[Tensor]) -> None:
        """Count the storages of these tensors, each once, until they are freed."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if (address := storage._cdata) not in self._sizes:
                self._begin(address, storage)

    def _begin(self, address: int, storage: UntypedStorage) -> None:
        size = self._sizes[address] = storage.nbytes()
        self._keys[address] = next(self._count)  # an address is taken again, a key never
        if size:
            self.events.append((self._keys[address], size))
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._end, address).atexit = False

    def _end(self, address: int) -> None:
        self.live -= self._sizes.pop(address)
        self.events.append((self._keys.pop(address), 0))
