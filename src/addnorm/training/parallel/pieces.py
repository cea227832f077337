"""The piece of a tensor that each process of a group holds, and sums over the group."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed import ProcessGroup

from addnorm.nn.functional import once_differentiable


class Group(ABC):
    """Processes that split tensors among themselves: the rank of this one, and their number."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @abstractmethod
    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, without a gradient."""

    @abstractmethod
    def largest(self, tensor: Tensor) -> Tensor:
        """The maximum over the processes, without a gradient."""

    @abstractmethod
    def all(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, of equal shape, in order of rank."""

    def sum_for_each(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sum over processes of their tensors for this one; `tensors` holds one per process."""
        return self.sum(torch.stack([*tensors]))[self.rank]

    def sent(self, tensor: Tensor, source: int) -> Tensor:
        """The tensor sent by the process `source`; the others pass one of the same shape."""
        return self.all(tensor)[source]

    def texts(self, text: str) -> list[str]:
        """The strings of all processes, in order of rank."""
        encoded = torch.tensor([*text.encode()], dtype=torch.uint8)
        longest = int(self.largest(torch.tensor(len(encoded))))
        padded = torch.zeros(longest + 1, dtype=torch.uint8)
        padded[: len(encoded)] = encoded
        return [bytes(row.tolist()).rstrip(b"\0").decode() for row in self.all(padded)]


class ConnectedGroup(Group):
    """Processes connected by `torch.distributed`."""

    def __init__(self, handle: ProcessGroup) -> None:
        super().__init__(distributed.get_rank(handle), distributed.get_world_size(handle))
        self.handle = handle

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, without a gradient."""
        return self._reduced(tensor, distributed.ReduceOp.SUM)

    def largest(self, tensor: Tensor) -> Tensor:
        """The maximum over the processes, without a gradient."""
        return self._reduced(tensor, distributed.ReduceOp.MAX)

    def all(self, tensor: Tensor) -> list[Tensor]:
        """The tensors of all processes, of equal shape, in order of rank."""
        tensors = [torch.empty_like(tensor) for _ in range(self.size)]
        distributed.all_gather(tensors, tensor.contiguous(), group=self.handle)
        return tensors

    def sum_for_each(self, tensors: Sequence[Tensor]) -> Tensor:
        """The sum over processes of their tensors for this one; `tensors` holds one per process."""
        total = torch.empty_like(tensors[0])
        distributed.reduce_scatter(total, [*tensors], group=self.handle)
        return total

    def sent(self, tensor: Tensor, source: int) -> Tensor:
        """The tensor sent by the process `source`; the others pass one of the same shape."""
        copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        distributed.broadcast(copy, group=self.handle, group_src=source)
        return copy

    def _reduced(self, tensor: Tensor, operation: distributed.ReduceOp.RedOpType) -> Tensor:
        reduced = tensor.detach().clone(memory_format=torch.contiguous_format)
        distributed.all_reduce(reduced, operation, group=self.handle)
        return reduced


@dataclass(frozen=True)
class Piece:
    """The piece of an axis of `total` indices, divided into `units` of equal size.

    Process r of N has the units from `units · r / N` to `units · (r + 1) / N`, rounded down; if
    there are fewer units than processes, several have the same one. One unit is the whole.
    """

    group: Group
    axis: int
    total: int
    units: int

    @classmethod
    def whole_of(cls, tensor: Tensor, group: Group) -> "Piece":
        """The whole tensor as a piece: every process has all of it, and a part of its gradient."""
        return cls(group, 0, tensor.shape[0] if tensor.ndim else 1, 1)

    @property
    def within(self) -> "Piece":
        """The piece among the processes of one stage."""
        return self

    @property
    def copies(self) -> int:
        """The number of processes that hold each value."""
        return max(1, self.group.size // self.units)

    @property
    def bounds(self) -> tuple[int, int]:
        """The first index of this process, and the one after its last."""
        return self.bounds_of(self.group.rank)

    @property
    def leads(self) -> bool:
        """Whether this process is the first of those that hold the same piece."""
        bounds = map(self.bounds_of, range(self.group.rank))
        return self.bounds not in bounds

    def bounds_of(self, rank: int) -> tuple[int, int]:
        """The first index of a process, and the one after its last."""
        first = self.units * rank // self.group.size
        last = max(first + 1, self.units * (rank + 1) // self.group.size)
        each = self.total // self.units
        return first * each, last * each

    def of(self, whole: Tensor) -> Tensor:
        """Cut this process's piece out of a whole tensor."""
        return whole if self.units == 1 else self._narrowed(whole, self.group.rank)

    def whole(self, piece: Tensor) -> Tensor:
        """Gather the whole tensor from the pieces of all processes."""
        if self.units == 1:
            return piece
        lengths = [last - first for first, last in map(self.bounds_of, range(self.group.size))]
        shape = self.shape_of_whole(piece.shape)
        whole, padded = piece.new_empty(shape), [*piece.shape]
        padded[self.axis] = max(lengths)
        own = piece.new_zeros(padded)
        own.narrow(self.axis, 0, piece.shape[self.axis]).copy_(piece)
        for rank, of_rank in enumerate(self.group.all(own)):
            self._narrowed(whole, rank).copy_(of_rank.narrow(self.axis, 0, lengths[rank]))
        return whole

    def shape_of_whole(self, shape: torch.Size) -> torch.Size:
        """The shape of the whole tensor, given that of a piece."""
        if self.units == 1:
            return shape
        lengths = [*shape]
        lengths[self.axis] = self.total
        return torch.Size(lengths)

    def sum_of_copies(self, tensor: Tensor) -> Tensor:
        """The sum over the processes that hold the same piece."""
        alike = [self.bounds_of(rank) == self.bounds for rank in range(self.group.size)]
        tensors = zip(self.group.all(tensor), alike, strict=True)
        return torch.stack([of_rank for of_rank, same in tensors if same]).sum(0)

    def behind(self, axes: int) -> "Piece":
        """The same piece of tensors with `axes` more leading axes."""
        return replace(self, axis=self.axis + axes)

    def _narrowed(self, whole: Tensor, rank: int) -> Tensor:
        first, last = self.bounds_of(rank)
        return whole.narrow(self.axis, first, last - first)


@dataclass(frozen=True)
class StagePiece:
    """A tensor that is equal in some pipeline stages and empty in all others.

    A holder has it whole, or its piece among the processes of the same stage (`within`). The
    `sharers` are the holders, if several.
    """

    pipeline: Group
    holders: tuple[int, ...]
    shape: torch.Size
    """The shape of the whole."""
    within: Piece | None = None
    sharers: Group | None = None

    @property
    def held(self) -> bool:
        """Whether this process holds the tensor."""
        return self.pipeline.rank in self.holders

    @property
    def leads(self) -> bool:
        """Whether this process is in the first stage that holds it."""
        return self.pipeline.rank == self.holders[0]

    @property
    def copies(self) -> int:
        """The number of processes that hold each value, each with a part of its gradient."""
        return len(self.holders) * (1 if self.within is None else self.within.copies)

    def of(self, whole: Tensor) -> Tensor:
        """What this process holds of a whole tensor: its piece, or an empty tensor."""
        if not self.held:
            return whole.new_empty(0, *self.shape[1:])
        return whole if self.within is None else self.within.of(whole)

    def whole(self, part: Tensor) -> Tensor:
        """Gather the whole tensor in every process, from what each holds of it."""
        if self.held:
            full = part if self.within is None else self.within.whole(part)
        else:
            full = part.new_empty(self.shape)
        return self.pipeline.sent(full, self.holders[0])

    def shape_of_whole(self, shape: torch.Size) -> torch.Size:
        """The shape of the whole."""
        return self.shape

    def sum_of_copies(self, tensor: Tensor) -> Tensor:
        """The sum over the processes that hold the same tensor."""
        if self.within is not None and self.within.copies > 1:
            tensor = self.within.sum_of_copies(tensor)
        return tensor if self.sharers is None else self.sharers.sum(tensor)


AnyPiece = Piece | StagePiece
"""What a process holds of a parameter."""


# Shoeybi et al. 2019, §3, figure 3: the conjugate operators f and g around a split layer.


def copied(x: Tensor, group: Group) -> Tensor:
    """`x` unchanged, with its gradient summed over the processes: f, before a split."""
    return _Copied.apply(x, group) if x.requires_grad else x  # pyright: ignore[reportReturnType]


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum of `x` over the processes, with the gradient given to each: g, after a split."""
    return _Summed.apply(x, group)  # pyright: ignore[reportReturnType]


def gathered(x: Tensor, piece: Piece) -> Tensor:
    """Gather the whole from the pieces `x`; the gradient is this process's piece of the whole's."""
    return _Gathered.apply(x, piece)  # pyright: ignore[reportReturnType]


def shared(x: Tensor, piece: Piece) -> Tensor:
    """Gather the whole from the pieces `x`, for a split use: the gradient is a piece of the sum."""
    return _Shared.apply(x, piece)  # pyright: ignore[reportReturnType]


class _Copied(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.group.sum(grads[0]), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return group.sum(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grads[0], None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, piece: Piece) -> Tensor:
        ctx.piece = piece
        return piece.whole(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return ctx.piece.of(grads[0]), None


class _Shared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, piece: Piece) -> Tensor:
        ctx.piece = piece
        return piece.whole(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        piece: Piece = ctx.piece
        # The gradients of copies are summed later, so each has its share.
        return piece.of(piece.group.sum(grads[0])) / piece.copies, None
