"""The whole weights of a model that processes have split, one after another, in one of them."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.models.weights import weights_of
from addnorm.nn.blocks import Stack
from addnorm.training.parallel.pieces import Group
from addnorm.training.parallel.shard import shared_weights
from addnorm.training.parallel.tensors import whole

T = TypeVar("T")
LAST = -1
"""Is sent in place of the number of a weight when the leading process needs no more."""


class WholeWeights(Mapping[str, Tensor]):
    """The whole weights of a split model by name, each gathered when it is asked for.

    The leading process asks, in `led`, and sends the number of each weight; all others take part.
    """

    def __init__(self, placed: nn.Module, everyone: Group) -> None:
        self.parts = dict(placed.named_parameters())
        self.weights = weights_of(placed)
        self.everyone = everyone
        self._names = [*self.weights]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, name: str) -> Tensor:
        if name in self.parts:
            self._announced(self._names.index(name))
        return self._gathered(name)

    def led(self, do: Callable[["WholeWeights"], T], otherwise: T) -> T:
        """What `do` returns in the leading process; the others take part until it has ended."""
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
    """In this context, a model without memory computes with these weights.

    It has those of a block while the block runs, and those of tables, heads and norms, and the ones
    that blocks share, all the time.
    """
    names = {parameter: name for name, parameter in model.named_parameters()}
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    shared, handles = shared_weights(model), list[RemovableHandle]()
    before = {parameter: parameter.data for parameter in names}
    for block in {block for stack in stacks for block in stack.blocks}:
        own = {p: names.pop(p) for p in block.parameters() if p not in shared}
        handles += [
            block.register_forward_pre_hook(lambda *_, own=own: _take(own, weights)),
            block.register_forward_hook(lambda *_, own=own: _leave(own, before), always_call=True),
        ]
    _take(names, weights)
    try:
        yield
    finally:
        _leave(names, before)
        for handle in handles:
            handle.remove()


def _take(named: Mapping[nn.Parameter, str], weights: Mapping[str, Tensor]) -> None:
    """Give parameters the weights of their names."""
    for parameter, name in named.items():
        parameter.data = weights[name]


def _leave(parameters: Iterable[nn.Parameter], before: Mapping[nn.Parameter, Tensor]) -> None:
    """Give parameters what they were before."""
    for parameter in parameters:
        parameter.data = before[parameter]
