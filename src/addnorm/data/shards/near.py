"""Near duplicates of texts: signatures by MinHash, and an index that finds similar ones.

The similarity of two texts is `|A ∩ B| / |A ∪ B|` of their sets of shingles, which are runs of
words. In a random order of all shingles, the first of A is the first of B with this probability; so
the share of equal values of two signatures estimates it (Broder 1997, §3). The index compares only
signatures that agree in a band of values (Leskovec et al. 2014, §3.4).
"""

import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from addnorm.data.shards.options import ShardOptions
from addnorm.errors import optional

Signature = NDArray[np.uint32]

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003134f"
)
"""Characters of scripts without spaces between words: each is a word."""
WORD = re.compile(f"[{UNSPACED}]|[^\\W{UNSPACED}]+")
AT_ONCE = 2**12
"""Shingles that are hashed together, which bounds the memory of a long text."""
MISSED = 0.05
BLOCK = 2**14
"""Signatures that are allocated together."""


def shingles(text: str, n_words: int) -> set[str]:
    """Return all runs of this many words in a text, in lower case and without punctuation.

    A text of fewer words is one shingle, and so is one without words.
    """
    words = WORD.findall(text.lower())
    if len(words) < n_words:
        return {" ".join(words) or text.strip()}
    return set(map(" ".join, zip(*(words[i:] for i in range(n_words)), strict=False)))


def library() -> Any:
    """Import the package that computes signatures. Raises `InputError` if it is not installed."""
    return optional("datasketch", "dedup", "dedup = 'near'")


def signer_of(options: ShardOptions) -> Callable[[Sequence[str]], Sequence[Signature]]:
    """Return a function that computes the signatures of texts."""
    settings = {
        "num_perm": options.permutations,
        "seed": 1,
        "hashfunc": lambda shingle: xxhash.xxh3_64_intdigest(shingle.encode()) & 0xFFFFFFFF,
        "scheme": "affine32",
    }
    permutations = library().MinHash(**settings).permutations

    def sign(text: str) -> Signature:
        signature = library().MinHash(**settings, permutations=permutations)
        of_text = [*shingles(text, options.shingle_words)]
        for i in range(0, len(of_text), AT_ONCE):
            signature.update_batch(of_text[i : i + AT_ONCE])
        return signature.hashvalues.astype("<u4")

    return lambda texts: [sign(text) for text in texts]


def bands(options: ShardOptions) -> tuple[int, int]:
    """Return the number of bands of a signature, and the number of values in each.

    Of texts as alike as the threshold `t`, at most `MISSED` have no band in common: those of `b`
    bands of `r` values have none with probability `(1 - tʳ)ᵇ`.
    """
    t, n = options.near_threshold, options.permutations
    missed = {r: (1 - t**r) ** (n // r) for r in range(1, n + 1)}
    width = max(r for r in missed if missed[r] <= MISSED or r == 1)
    return n // width, width


class NearIndex:
    """An index that finds whether a signature is near one that was added.

    Near is a share of equal values of at least `options.near_threshold`, and an equal band. A
    signature takes four bytes for each value, and 18 to 36 for each band.
    """

    def __init__(self, options: ShardOptions) -> None:
        self._n_bands, self._width = bands(options)
        self._least = options.near_threshold * options.permutations
        self._permutations = options.permutations
        self._blocks: list[NDArray[np.uint32]] = []
        self._n = 0
        self._table = Table()

    def is_near(self, signature: Signature) -> bool:
        """Return whether a signature is near one of the index."""
        compared = set[int]()
        for band in self._bands(signature):
            for i in self._table.values(band):
                if i not in compared:
                    compared.add(i)
                    of_other = self._blocks[i // BLOCK][i % BLOCK]
                    if np.count_nonzero(of_other == signature) >= self._least:
                        return True
        return False

    def add(self, signature: Signature) -> None:
        """Add a signature."""
        if self._n % BLOCK == 0:
            self._blocks.append(np.empty((BLOCK, self._permutations), np.uint32))
        self._blocks[-1][self._n % BLOCK] = signature
        for band in self._bands(signature):
            self._table.add(band, self._n)
        self._n += 1

    def _bands(self, signature: Signature) -> Iterator[int]:
        """Yield a hash of each band of a signature, distinct for each position."""
        for i in range(self._n_bands):
            band = signature[i * self._width : (i + 1) * self._width]
            yield xxhash.xxh3_64_intdigest(band.tobytes(), seed=i)


class Table:
    """A hash table from 64-bit hashes to several numbers each: open addressing, linear probing."""

    def __init__(self, size: int = 2**10) -> None:
        self._resize(size)
        self._n = 0

    def _resize(self, size: int) -> None:
        self._hashes, self._numbers = array("Q", bytes(8 * size)), array("I", bytes(4 * size))
        self._last = size - 1

    def values(self, key: int) -> Iterator[int]:
        """Yield the numbers that were added under a hash."""
        place = key & self._last
        while number := self._numbers[place]:
            if self._hashes[place] == key:
                yield number - 1
            place = (place + 1) & self._last

    def add(self, key: int, number: int) -> None:
        """Add a number under a hash."""
        self._n += 1
        if 3 * self._n > 2 * len(self._hashes):
            before = zip(self._hashes, self._numbers, strict=True)
            self._resize(2 * len(self._hashes))
            for hash_before, number_before in before:
                if number_before:
                    self._put(hash_before, number_before)
        self._put(key, number + 1)

    def _put(self, key: int, number: int) -> None:
        place = key & self._last
        while self._numbers[place]:
            place = (place + 1) & self._last
        self._hashes[place], self._numbers[place] = key, number
