"""Dropout over processes: for each row the mask of a single process, or other masks per rank."""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Protocol

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from addnorm.nn.attention.core import EagerCore, SDPACore
from addnorm.nn.attention.differential import DifferentialCore
from addnorm.nn.attention.sinks import SinkCore
from addnorm.nn.dropout import Dropout
from addnorm.nn.moe import MixtureOfExperts

OF_A_RANK = 0x9E3779B97F4A7C15
"""A number far from 0 and 1, whose multiples set the seeds of the ranks apart."""


@dataclass(frozen=True)
class Rows:
    """The rows of a batch that a process takes: `first` and before `last`, of `total`."""

    first: int
    last: int
    total: int

    def places(self, n: int, copies: int) -> tuple[Int[Tensor, " n"], int] | None:
        """The indices of `n` input rows among those of all processes, and the number of all.

        An input has one row for each row of the batch, or several neighbours, as of pairs of texts;
        and all of that in several `copies`. None if `n` is not a multiple of the rows.
        """
        taken = (self.last - self.first) * copies
        if n % taken:
            return None
        each = n // taken
        rows = torch.arange(each * self.first, each * self.last)
        return torch.cat([rows + i * each * self.total for i in range(copies)]), each * (
            copies * self.total
        )


class PieceOfTensor(Protocol):
    """The piece of a tensor that this process has."""

    def shape_of_whole(self, shape: torch.Size) -> torch.Size:
        """The shape of the whole tensor, given that of the piece."""
        ...

    def of(self, whole: Tensor) -> Tensor:
        """Cut this process's piece out of the whole tensor."""
        ...


Pieces = Callable[[nn.Module, Tensor], Sequence[PieceOfTensor]]
"""Which piece a dropout's input is of the inputs in all processes: a piece of a piece of the whole.
"""


@contextmanager
def masks_by_row(
    model: nn.Module,
    rows: Callable[[], Rows],
    *,
    copies: int,
    rank: Callable[[nn.Module], int],
    pieces: Pieces = lambda module, x: (),
    alone: Callable[[EagerCore, Tensor, Tensor], bool] | None = None,
) -> Generator[None]:
    """In this context, draw dropout masks row by row, independent of the number of processes.

    A `Dropout` whose input has the rows of the batch draws a mask for the rows of all processes
    from the generator, whose state all processes share, and takes its own; so one process draws
    the same. Of an input that is a piece, it draws the mask of the whole. Parts that draw by
    themselves (dropout of attention weights in fused kernels, that inside experts, and parts from
    outside) draw from another seed for each `rank` of theirs, which comes from the shared
    generator. So does an eager core where `alone` says so of its queries and keys.
    """
    private = [m for m in outermost(model, draws_numbers) if not isinstance(m, Dropout)]
    inside = {inner for module in private for inner in module.modules()}
    handles = [handle for module in private for handle in _from_own_seed(module, rank(module))]
    for module in model.modules():
        if isinstance(module, Dropout) and module.p > 0:
            by_row = None if module in inside else rows
            handles += _replayed(module, by_row, copies, pieces)
        elif isinstance(module, EagerCore) and alone is not None and module not in inside:
            handles += _from_own_seed(module, rank(module), when=partial(alone, module))
    with ExitStack() as hooks:
        for handle in handles:
            hooks.enter_context(handle)
        yield


def outermost(model: nn.Module, chosen: Callable[[nn.Module], bool]) -> Iterator[nn.Module]:
    """Yield the chosen modules of a model that are not inside another chosen one."""
    for child in model.children():
        if chosen(child):
            yield child
        else:
            yield from outermost(child, chosen)


def draws_numbers(module: nn.Module) -> bool:
    """Whether a part may draw random numbers by itself in training."""
    if isinstance(module, SDPACore | DifferentialCore | SinkCore):
        return module.dropout > 0
    if isinstance(module, MixtureOfExperts):
        return any(isinstance(m, Dropout) and m.p > 0 for m in module.modules())
    return not type(module).__module__.startswith(("addnorm.", "torch."))


def _replayed(
    module: nn.Module, rows: Callable[[], Rows] | None, copies: int, pieces: Pieces
) -> Iterator[RemovableHandle]:
    """Let a dropout draw the mask for all processes, and apply only this process's part of it."""
    own: list[tuple[Tensor, Callable[[Tensor], Tensor]]] = []

    def before(dropout: nn.Module, args: tuple[Any, ...]) -> tuple[Tensor] | None:
        (x,) = args
        own.clear()
        places = rows().places(len(x), copies) if rows is not None else None
        parts = pieces(module, x)
        if not dropout.training or (places is None and not parts):
            return None
        shape = reduce(lambda shape, part: part.shape_of_whole(shape), parts, x.shape)
        index, total = places or (slice(None), shape[0])
        own.append((x, lambda mask: reduce(lambda mask, part: part.of(mask), parts, mask)[index]))
        return (x.new_ones(()).expand(total, *shape[1:]),)

    def after(_: nn.Module, __: Any, mask: Tensor) -> Tensor:
        if not own:
            return mask
        x, taken = own.pop()
        return x * taken(mask)

    yield module.register_forward_pre_hook(before)
    yield module.register_forward_hook(after)


def _from_own_seed(
    module: nn.Module, rank: int, when: Callable[[Tensor, Tensor], bool] = lambda *inputs: True
) -> Iterator[RemovableHandle]:
    """Let a part draw from a seed of this rank, without changing the shared generator."""
    states: list[Tensor] = []

    def before(part: nn.Module, inputs: tuple[Any, ...]) -> None:
        if part.training and when(*inputs[:2]):
            seed = int(torch.randint(2**62, ()))
            states.append(torch.get_rng_state())
            torch.default_generator.manual_seed((seed + rank * OF_A_RANK) % 2**62)

    def after(_: nn.Module, __: Any, ___: Any) -> None:
        if states:
            torch.set_rng_state(states.pop())

    yield module.register_forward_pre_hook(before)
    yield module.register_forward_hook(after)
