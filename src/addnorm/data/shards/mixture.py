"""Mixtures of shard folders: which row of which folder comes at each place of an epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from addnorm.data.shards.order import Permutation
from addnorm.data.tokenizing.pieces import Ids
from addnorm.errors import InputError


@dataclass(frozen=True)
class MixedRow:
    """A row in a mixture: its folder, the pass through that folder, and its index in the pass."""

    folder: int
    round: int
    row: int


@dataclass(frozen=True)
class Mixture:
    """The rows of several folders in one order, mixed by their weights.

    An epoch has as many places as all folders have rows, and folder `f` has `c_f` of them: its
    share of the weights, or all of its rows without weights. Its rows are passed through in rounds:
    place `j` of its places in epoch `e` is number `e·c_f + j` of all, so each of its `n_f` rows
    comes once in every `n_f` of them. Two permutations, of the places of an epoch and of the rows
    of a round, make the order, a pure function of (seed, epoch, place); without a seed rows keep
    their order.
    """

    rows: tuple[int, ...]
    """The number of rows of each folder."""
    weights: tuple[float, ...] | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _ = self.counts  # raises the error before training begins

    def __len__(self) -> int:
        return sum(self.rows)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of places of each folder in an epoch.

        Raises `InputError` for a folder without any.
        """
        if self.weights is None:
            return self.rows
        counts = shares(len(self), self.weights)
        if 0 in counts:
            least = self.weights[counts.index(0)]
            raise InputError(
                f"data.weights: {least:g} of {sum(self.weights):g} gives its folder none of the "
                f"{len(self):,} rows of an epoch: raise it, or leave that folder out"
            )
        return counts

    def at(self, epoch: int, start: int, stop: int) -> list[MixedRow]:
        """Return the rows at places `start` to `stop` of an epoch."""
        places = np.arange(start, stop)
        if self.seed is not None:
            places = Permutation(len(self), f"seed {self.seed}, epoch {epoch}")(places)
        first = np.array([0, *accumulate(self.counts)])
        folders = np.searchsorted(first, places, side="right") - 1
        numbers = places - first[folders] + epoch * np.array(self.counts)[folders]
        rounds, rows = np.divmod(numbers, np.array(self.rows)[folders])
        if self.seed is not None:
            for which in self._alike(folders, rounds):
                folder, n = int(folders[which[0]]), int(rounds[which[0]])
                key = f"seed {self.seed}, folder {folder}, round {n}"
                rows[which] = Permutation(self.rows[folder], key)(rows[which])
        triples = zip(folders.tolist(), rounds.tolist(), rows.tolist(), strict=True)
        return [MixedRow(*triple) for triple in triples]

    def _alike(self, folders: Ids, rounds: Ids) -> Iterator[Ids]:
        """Yield groups of indices whose places share a folder and a pass through it."""
        _, groups = np.unique(np.stack([folders, rounds]), axis=1, return_inverse=True)
        groups = groups.reshape(-1)
        for group in range(int(groups.max(initial=-1)) + 1):
            yield np.flatnonzero(groups == group)


def shares(n: int, weights: Sequence[float]) -> tuple[int, ...]:
    """Divide `n` in proportion to weights, by the method of largest remainders."""
    exact = [n * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: counts[i] - exact[i])
    for i in by_remainder[: n - sum(counts)]:
        counts[i] += 1
    return tuple(counts)
