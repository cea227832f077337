"""Counting the bytes that tensors take while operations run, on tensors with or without values."""

import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Allocations(TorchDispatchMode):
    """Within this, counts the bytes of every storage from its creation until it is freed.

    `live` are the bytes at the moment, `peak` the most so far. Tensors that were there before are
    counted by `add`. What a kernel allocates for itself, and frees before it returns, is not seen.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}

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
            address = storage._cdata  # pyright: ignore[reportPrivateUsage]
            if address not in self._sizes:
                self._begin(address, storage)

    def _begin(self, address: int, storage: UntypedStorage) -> None:
        self._sizes[address] = storage.nbytes()
        self.live += self._sizes[address]
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._end, address).atexit = False

    def _end(self, address: int) -> None:
        self.live -= self._sizes.pop(address)
