"""The whole weights of a split model, gathered one after another in the leading process."""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from addnorm.models.weights import weights_of
from addnorm.nn.attention import CrossAttention
from addnorm.nn.blocks import Stack
from addnorm.training.parallel.pieces import Group
from addnorm.training.parallel.shard import shared_weights
from addnorm.training.parallel.tensors import whole

T = TypeVar("T")
LAST = -1
"""Is sent in place of the number of a weight when the leading process needs no more."""


class WholeWeights(Mapping[str, Tensor]):
    """The whole weights of a split model by name, each gathered on access.

    The leading process asks, in `led`, and sends the number of each weight; all others take part.
    What fits into a room of so many bytes is kept there, and not gathered again.
    """

    def __init__(self, placed: nn.Module, everyone: Group, room: int = 0) -> None:
        self.parts = dict(placed.named_parameters())
        self.weights = weights_of(placed)
        self.everyone = everyone
        self._names = [*self.weights]
        self._room = room
        self._kept = dict[str, Tensor]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        if name in self._kept:
            return self._kept[name]
        if name in self.parts:
            self._announced(self._names.index(name))
        weight = self._gathered(name)
        if weight.nbytes <= self._room:
            self._room -= weight.nbytes
            self._kept[name] = weight
        return weight

    def led(self, do: Callable[["WholeWeights"], T], otherwise: T) -> T:
        """The result of `do` in the leading process; the others help to gather until it ends."""
        if self.everyone.rank:
            while (number := self._announced(LAST)) != LAST:
                self._gathered(self._names[number])
            return otherwise
        try:
            return do(self)
        finally:
            self._announced(LAST)

    def _announced(self, number: int) -> int:
        return int(self.everyone.sent(torch.tensor(number), 0))

    def _gathered(self, name: str) -> Tensor:
        weight = self.weights[name]
        return whole(weight, self.parts[name]).detach() if name in self.parts else weight


@contextmanager
def computing_with(model: nn.Module, weights: Mapping[str, Tensor]) -> Generator[None]:
    """In this context, a model without memory for weights computes with these.

    It has those of a block while the block runs, or projects the memory that it attends to; and
    those of tables, heads and norms, the ones that blocks share, and running statistics, all the
    time.
    """
    persistent = weights_of(model)
    named = chain(model.named_parameters(), model.named_buffers())
    names = {tensor: name for name, tensor in named if name in persistent}
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    shared = shared_weights(model)
    with ExitStack() as around:
        for block in {block for stack in stacks for block in stack.blocks}:
            own: dict[Tensor, str] = {
                p: names.pop(p) for p in block.parameters() if p not in shared
            }
            lent = _Lent(own, weights)
            around.enter_context(_calling_with(lent, block, "forward"))
            for attention in block.modules():
                if isinstance(attention, CrossAttention):
                    around.enter_context(_calling_with(lent, attention, "keys_values"))
        around.enter_context(_Lent(names, weights))
        yield


class _Lent:
    """A context, which may be nested, in which tensors of a model have these weights."""

    def __init__(self, names: Mapping[Tensor, str], weights: Mapping[str, Tensor]) -> None:
        self.names = names
        self.weights = weights
        self.before = {tensor: tensor.data for tensor in names}
        self._depth = 0

    def __enter__(self) -> None:
        if not self._depth:
            for tensor, name in self.names.items():
                tensor.data = self.weights[name]
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            for tensor, before in self.before.items():
                tensor.data = before


@contextmanager
def _calling_with(lent: _Lent, module: nn.Module, name: str) -> Generator[None]:
    """In this context, a method of a module runs with the weights lent to it."""
    method = getattr(module, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        with lent:
            return method(*args, **kwargs)

    vars(module)[name] = call
    try:
        yield
    finally:
        del vars(module)[name]
