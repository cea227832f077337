"""The positions of a text that each process has, and exchanges along the axis of positions."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from addnorm.nn.context import Context
from addnorm.nn.functional import once_differentiable
from addnorm.training.parallel.pieces import Group


@dataclass(frozen=True)
class Positions:
    """The positions that each process of a group has, in texts of `total` tokens.

    A text falls into 2N chunks, and process r of N has chunks r and 2N - 1 - r: of the pairs that a
    causal mask allows, all have as many (Llama Team 2024, §3.3.2). A process that would have none,
    of a text shorter than there are processes, computes the first position, and nobody reads it.
    """

    group: Group
    total: int

    def of_rank(self, rank: int) -> Int[Tensor, " part"]:
        """The positions of one process, in order."""
        chunks = (self._chunk(i) for i in (rank, 2 * self.group.size - 1 - rank))
        return torch.cat([torch.arange(chunk.start, chunk.stop) for chunk in chunks])

    def _chunk(self, i: int) -> range:
        return range(*(self.total * end // (2 * self.group.size) for end in (i, i + 1)))

    @cached_property
    def counts(self) -> list[int]:
        """The number of positions of each process."""
        return [len(self.of_rank(rank)) for rank in range(self.group.size)]

    @property
    def stands_in(self) -> bool:
        """Whether this process has no positions, and so repeats the first one."""
        return self.counts[self.group.rank] == 0

    @cached_property
    def own(self) -> Int[Tensor, " part"]:
        """The positions that this process computes."""
        return torch.zeros(1, dtype=torch.long) if self.stands_in else self.of_rank(self.group.rank)

    @property
    def chunks(self) -> list[slice]:
        """The range of each chunk among this process's positions."""
        first, n = self._chunk(self.group.rank), len(self.own)
        return [
            part for part in (slice(0, len(first)), slice(len(first), n)) if part.start < part.stop
        ]

    @cached_property
    def others(self) -> Int[Tensor, " rest"]:
        """The positions of the other processes."""
        ranks = [rank for rank in range(self.group.size) if rank != self.group.rank]
        return torch.cat([torch.arange(0), *(self.of_rank(rank) for rank in ranks)])

    def of(self, whole: Tensor, axis: int = 1) -> Tensor:
        """Select this process's positions along an axis."""
        return whole.index_select(axis, self.own.to(whole.device))

    def context(self, ctx: Context) -> Context:
        """The context in which this process's tokens attend to those of all processes."""
        device = ctx.kv_slots.device
        return ctx.part(self.own.to(device), self.others.to(device))

    def with_others(self, x: Tensor, axis: int) -> Tensor:
        """Gather an axis of positions from all processes, this one's last.

        Its gradient by `x` is summed over the processes.
        """
        return _WithOthers.apply(x, self, axis)  # pyright: ignore[reportReturnType]

    def whole(self, x: Tensor, axis: int = 1) -> Tensor:
        """Gather an axis of positions from all processes, in the order of the text."""
        own = self.own[:0] if self.stands_in else self.own
        order = torch.cat([self.others, own]).argsort()
        return self.with_others(x, axis).index_select(axis, order.to(x.device))


@dataclass(frozen=True)
class PositionsOfAxis:
    """The axis of a tensor that holds this process's positions, and perhaps one of all keys."""

    positions: Positions
    axis: int
    keys: int | None = None

    def fits(self, shape: torch.Size) -> bool:
        """Whether a tensor's shape has these axes."""
        own, others = len(self.positions.own), len(self.positions.others)
        lengths = {self.axis: own} | ({} if self.keys is None else {self.keys: own + others})
        return all(axis < len(shape) and shape[axis] == n for axis, n in lengths.items())

    def shape_of_whole(self, shape: torch.Size) -> torch.Size:
        """The shape of the tensor with all positions."""
        lengths = [*shape]
        for axis in (self.axis, self.keys):
            if axis is not None:
                lengths[axis] = self.positions.total
        return torch.Size(lengths)

    def of(self, whole: Tensor) -> Tensor:
        """Select this process's positions from the tensor with all positions."""
        own = self.positions.of(whole, self.axis)
        if self.keys is None:
            return own
        keys = torch.cat([self.positions.others, self.positions.own])
        return own.index_select(self.keys, keys.to(own.device))


class _WithOthers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Positions, axis: int) -> Tensor:
        ctx.positions, ctx.axis, ctx.n = positions, axis, x.shape[axis]
        counts, rank = positions.counts, positions.group.rank
        parts = positions.group.all(_padded(x, axis, max(counts)))
        others = [
            part.narrow(axis, 0, n)
            for i, (part, n) in enumerate(zip(parts, counts, strict=True))
            if i != rank
        ]
        return torch.cat([*others, x], axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        positions, axis = ctx.positions, ctx.axis
        counts, rank = positions.counts, positions.group.rank
        *others, own = grads[0].split([*counts[:rank], *counts[rank + 1 :], ctx.n], axis)
        parts = [*others[:rank], own, *others[rank:]]
        total = positions.group.sum_for_each([_padded(part, axis, max(counts)) for part in parts])
        return own if positions.stands_in else total.narrow(axis, 0, counts[rank]), None, None


def _padded(x: Tensor, axis: int, length: int) -> Tensor:
    """`x` padded with zeros to this length along an axis."""
    missing = [*x.shape]
    missing[axis] = length - missing[axis]
    return torch.cat([x, x.new_zeros(missing)], axis)
