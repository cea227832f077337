"""The attention weights that a core shows are those by which it mixes the values."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from addnorm.checking.cached import Reader
from addnorm.checking.case import Case
from addnorm.checking.comparison import Comparison
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.nn.attention.core import HasWeights
from addnorm.nn.attention.kernels import shared
from addnorm.nn.attention.multihead import MultiHead

Call = tuple[nn.Module, tuple[Any, ...], Tensor]
"""A core, what it was called with, and its output."""


@runtime_checkable
class Combines(Protocol):
    """A core that does more with its weights than sum the values by them."""

    def combine(self, weights: Tensor, v: Tensor) -> Tensor:
        """The output of the core, from its weights and the values."""
        ...


def shown_weights(case: Case) -> Iterator[Comparison]:
    """`core.weights(q, k, …) v` is what each core returned, in a batch and with a cache."""
    if not _cores(case.model):
        return
    calls: list[Call] = []
    with _recorded(case.model, calls):
        case.run(case.side())
        if isinstance(case.model, DecoderModel | EncoderDecoderModel) and case.may_cache():
            reader = Reader.of(case)
            half = reader.tokens.shape[1] // 2
            reader.read(slice(0, half))
            reader.read(slice(half, reader.tokens.shape[1]))
    for core, (q, k, v, *rest), mixed in calls:
        assert isinstance(core, HasWeights)
        weights = core.weights(q, k, *rest)
        combined = isinstance(core, Combines)
        expected = core.combine(weights, v) if combined else weights @ shared(v, q.shape[1])
        yield Comparison("the weights that attention shows", expected, mixed)


def _cores(model: nn.Module) -> list[nn.Module]:
    """The cores of a model that show their weights."""
    cores = [module.core for module in model.modules() if isinstance(module, MultiHead)]
    return [core for core in cores if isinstance(core, HasWeights)]


@contextmanager
def _recorded(model: nn.Module, calls: list[Call]) -> Generator[None]:
    def note(core: nn.Module, given: tuple[Any, ...], mixed: Tensor) -> None:
        calls.append((core, given, mixed))

    handles = [core.register_forward_hook(note) for core in _cores(model)]
    try:
        with torch.no_grad():
            yield
    finally:
        for handle in handles:
            handle.remove()
