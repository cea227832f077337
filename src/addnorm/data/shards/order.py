"""Random permutations of any size, in which each place can be computed without the others."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np

from addnorm.data.tokenizing.pieces import Ids

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
