"""Mixtures of shard folders: which row of which folder comes at each place of an epoch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import accumulate

import numpy as np

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


ROUNDS = 8
"""Rounds of the Feistel network; four are enough for large domains (Luby and Rackoff 1988)."""


@dataclass(frozen=True)
class Permutation:
    """A permutation of the numbers below `n`, given by a key and computed place by place.

    A Feistel network permutes the numbers of 2h bits. A number is split into halves of h bits, and
    each round maps `(l, r)` to `(r, l ⊕ F(r, key))`. Where the result is n or more, it is permuted
    again until it is not (cycle walking; Black and Rogaway 2002, §3): four times on average or
    fewer, so a place takes the same time whatever n is, and no memory.
    """

    n: int
    key: str

    def __call__(self, places: Ids) -> Ids:
        """Return the number at each of these places from 0 to n - 1."""
        numbers = places.astype(np.uint64)
        outside = np.ones(len(numbers), bool)
        while outside.any():
            numbers[outside] = self._network(numbers[outside])
            outside = numbers >= self.n
        return numbers.astype(np.int64)

    @cached_property
    def _half(self) -> int:
        """The number of bits in half a number."""
        return max(1, ((self.n - 1).bit_length() + 1) // 2)

    @cached_property
    def _keys(self) -> Ids:
        """A 64-bit key for each round."""
        return np.frombuffer(blake2b(self.key.encode(), digest_size=8 * ROUNDS).digest(), "<u8")

    def _network(self, numbers: Ids) -> Ids:
        half, mask = np.uint64(self._half), np.uint64(2**self._half - 1)
        left, right = numbers >> half, numbers & mask
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        return (left << half) | right


def _mixed(numbers: Ids) -> Ids:
    """Mix the bits of each number, by the finaliser of SplitMix64 (Steele et al. 2014, §2)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
