"""Shuffled epoch order: the same permutation as `random.shuffle`, in about half the time."""

from collections.abc import Iterator
from math import isqrt
from random import Random

import numpy as np

from addnorm.data.tokenizing.pieces import Ids

BLOCK = 2**16
"""The most random words drawn at once."""


def shuffled(rng: Random, n: int) -> Ids:
    """Return the numbers below `n` in the order of `rng.shuffle`, but faster.

    Python's shuffle takes half a microsecond or more for each number: seconds for the four million
    windows of a text of a gigabyte.
    """
    order = np.arange(n, dtype=np.uint32 if n < 2**32 else np.int64)
    first = np.zeros(n, np.int32)
    i = n - 1
    for places in _places(rng, n):
        while len(places):
            size = _disjoint(places[: max(isqrt(i), 1)], i, first)
            last, others = order[i - size + 1 : i + 1][::-1], places[:size]
            moved = order[others]
            order[others] = last
            last[:] = moved
            i -= size
            places = places[size:]
    return order


def _disjoint(places: Ids, i: int, first: Ids) -> int:
    """Return how many of the next swaps (of i, i - 1, … with `places`) touch no position twice.

    These can be done at once. `first` is a buffer.
    """
    steps = np.arange(len(places), dtype=np.int32)
    first[places[::-1]] = steps[::-1]  # of places that are written twice, the last write stays
    again = steps[first[places] != steps]
    its_turn = i - places  # the step at which a place is itself swapped
    later = its_turn[(its_turn > steps) & (its_turn < len(places))]
    return int(min([len(places), *again[:1], *np.sort(later)[:1]]))


def _places(rng: Random, n: int) -> Iterator[Ids]:
    """Yield the results of `rng.randrange(i + 1)` for each i from n - 1 down to 1.

    It takes the highest bits of the next word, as many as i + 1 has, and tries the next word if
    their value is more than i.
    """
    words = _Words(rng)
    i = n - 1
    while i > 0:
        bits = (i + 1).bit_length()
        wanted = i + 1 - max(2 ** (bits - 1) - 1, 1)  # with as many bits, to the last i of all
        drawn = words.peek(min(2 * wanted + 32, BLOCK)) >> np.uint32(32 - bits)
        taken = _taken(drawn, i)
        places = drawn[taken][:wanted]
        # The words after the last wanted one are read again, with fewer bits.
        enough = len(places) == wanted
        words.skip(int(np.flatnonzero(taken)[wanted - 1]) + 1 if enough else len(drawn))
        yield places
        i -= len(places)


def _taken(drawn: Ids, i: int) -> Ids:
    """Mark the accepted draws: the first accepted is at most i, the next at most i - 1, and so on.

    Whether a number is taken depends on how many before it are. From any guess, each round is right
    for at least one number more; the result is right when a round changes nothing.
    """
    taken = drawn <= i
    while True:
        before = np.cumsum(taken) - taken
        better = drawn <= i - before
        if (better == taken).all():
            return taken
        taken = better


class _Words:
    """The 32-bit words that a generator draws, readable before they are used."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._words: Ids = np.zeros(0, np.uint32)

    def peek(self, n: int) -> Ids:
        """Return the next `n` words without using them."""
        if len(self._words) < n:
            drawn = self._rng.getrandbits(32 * BLOCK).to_bytes(4 * BLOCK, "little")
            self._words = np.concatenate([self._words, np.frombuffer(drawn, "<u4")])
        return self._words[:n]

    def skip(self, n: int) -> None:
        """Skip the next `n` words."""
        self._words = self._words[n:]
