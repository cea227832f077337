"""Shuffled epoch order: the same permutation as `random.shuffle`, in about half the time."""

from collections.abc import Iterator
from math import isqrt
from random import Random

import numpy as np

from addnorm.data.tokenizing.pieces import Ids

BLOCK = 2**16
"""The most random words that are drawn at once."""


def shuffled(rng: Random, n: int) -> Ids:
    """The numbers below `n` as `rng.shuffle` leaves them; what `rng` draws afterwards is another.

    Python's own takes half a microsecond or more for each number: seconds for the four million
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
    """How many swaps of i with the first place, i - 1 with the next … touch nothing twice.

    These can be made at once. `first` is room to work in.
    """
    steps = np.arange(len(places), dtype=np.int32)
    first[places[::-1]] = steps[::-1]  # of those that are written twice, the last write stays
    again = steps[first[places] != steps]
    its_turn = i - places  # when a place is itself the one to be swapped
    later = its_turn[(its_turn > steps) & (its_turn < len(places))]
    return int(min([len(places), *again[:1], *np.sort(later)[:1]]))


def _places(rng: Random, n: int) -> Iterator[Ids]:
    """For each i from n - 1 down to 1, what `rng.randrange(i + 1)` draws.

    It takes the highest bits of the next word, as many as i + 1 has, and the next word's again
    where they are more than i.
    """
    words = _Words(rng)
    i = n - 1
    while i > 0:
        bits = (i + 1).bit_length()
        wanted = i + 1 - max(2 ** (bits - 1) - 1, 1)  # with as many bits, to the last i of all
        drawn = words.peek(min(2 * wanted + 32, BLOCK)) >> np.uint32(32 - bits)
        taken = _taken(drawn, i)
        places = drawn[taken][:wanted]
        # What follows the last word that was wanted is read again, in fewer bits.
        enough = len(places) == wanted
        words.skip(int(np.flatnonzero(taken)[wanted - 1]) + 1 if enough else len(drawn))
        yield places
        i -= len(places)


def _taken(drawn: Ids, i: int) -> Ids:
    """Which of the numbers are taken, when the first may be at most i, the next i - 1, and so on.

    Whether one is taken depends on how many before it are. From any guess, each round is right a
    number further at least; it is right as a whole when it changes nothing.
    """
    taken = drawn <= i
    while True:
        before = np.cumsum(taken) - taken
        better = drawn <= i - before
        if (better == taken).all():
            return taken
        taken = better


class _Words:
    """The words of 32 bits that a generator draws, to be looked at before they are used."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._words: Ids = np.zeros(0, np.uint32)

    def peek(self, n: int) -> Ids:
        """The next `n` words."""
        if len(self._words) < n:
            drawn = self._rng.getrandbits(32 * BLOCK).to_bytes(4 * BLOCK, "little")
            self._words = np.concatenate([self._words, np.frombuffer(drawn, "<u4")])
        return self._words[:n]

    def skip(self, n: int) -> None:
        """Leave the next `n` words behind."""
        self._words = self._words[n:]
