"""A group of processes that are threads here, for tests of what they compute together."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any, TypeVar

import torch
from torch import Tensor

from addnorm.training.parallel.pieces import Group

T = TypeVar("T")


class ThreadGroup(Group):
    """One thread's number among several, and what all of them show each other."""

    def __init__(self, rank: int, shown: list[Any], barrier: Barrier) -> None:
        super().__init__(rank, len(shown))
        self.shown = shown
        self.barrier = barrier

    def all(self, tensor: Tensor) -> list[Tensor]:
        self.shown[self.rank] = tensor.detach().clone()
        self.barrier.wait(30)
        tensors = [*self.shown]
        self.barrier.wait(30)
        return tensors

    def sum(self, tensor: Tensor) -> Tensor:
        return torch.stack(self.all(tensor)).sum(0)

    def largest(self, tensor: Tensor) -> Tensor:
        return torch.stack(self.all(tensor)).amax(0)


def together(n: int, compute: Callable[[Group], T]) -> Sequence[T]:
    """What each of n threads computes, by number."""
    shown, barrier = [None] * n, Barrier(n)
    groups = [ThreadGroup(rank, shown, barrier) for rank in range(n)]
    with ThreadPoolExecutor(n) as pool:
        return [*pool.map(compute, groups)]
