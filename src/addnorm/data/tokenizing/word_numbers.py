"""The words of many texts as numbers, found by hashes of their bytes instead of one by one."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from addnorm.data.tokenizing.codecs import NO_CHARACTER, together
from addnorm.errors import TextError

BEGIN = "\1"
"""The sign at the start of each text: its first word has no space before it."""

ALONE = re.compile(rf"(?<=[^\s{BEGIN}]) (?=[^\s{BEGIN}])")
"""A space between two words, which belongs to the second: no token crosses the place before it."""

CUT = "\2"
"""The sign for such a space in texts in which other spaces are harder to tell."""

OTHER_SPACES = [sign for n in range(0x80, 0x3001) if (sign := chr(n)).isspace()]
"""White space beyond ASCII, such as a no-break space."""

IS_SPACE = np.array([chr(i) == BEGIN or (i < 128 and chr(i).isspace()) for i in range(256)])
"""Whether a byte is white space of ASCII, or the sign at the start of a text."""

AT_ONCE = 2**17
"""The characters of texts whose words are found at once: they stay in the processor's cache."""

SLOTS = 2**18
"""The places for words in the table that is looked into before the dictionary."""

LONGEST = 64
"""The bytes of a word that are hashed; a longer one is looked up in the dictionary."""

LOW_BYTES = np.array([2 ** (8 * n) - 1 for n in range(9)], np.uint64)
"""Masks of the first 0 to 8 bytes of a number that was read from memory."""

FACTORS = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
"""Odd numbers with irregular bits: 2⁶⁴ divided by the golden ratio, and a prime of xxHash."""

Numbers = NDArray[Any]


def count_words(texts: Iterable[str]) -> Counter[str]:
    """Count the words of texts, which end before a space alone between other characters.

    Texts with a sign of `WordNumbers` are each one word.
    """
    numbers, counts = WordNumbers(), np.zeros(0, np.int64)
    whole = Counter[str]()
    for group in together(texts, AT_ONCE):
        if (words_of_group := numbers.of(group)) is None:
            whole.update(group)
            continue
        new = np.bincount(words_of_group[0], minlength=len(numbers))
        new[: len(counts)] += counts
        counts = new
    words = (word.decode().removeprefix(BEGIN) for word in numbers)
    for word, n in zip(words, counts.tolist(), strict=True):
        whole[word] += n
    return whole


class WordNumbers(dict[bytes, int]):
    """The words met so far, each with its number in their order.

    A word ends before a space alone between other characters. A text's first word begins with
    `BEGIN`. Most words are found in a table of hashes of 128 bits, those of many texts at once;
    only those in whose place another word stands are looked up one by one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._hashes = np.zeros((2, SLOTS), np.uint64)
        self._numbers = np.zeros(SLOTS, np.int32)

    def of(self, texts: Sequence[str]) -> tuple[Numbers, Numbers] | None:
        """Return the number of each word of one or more texts, and where each text's words begin.

        None if a text has one of the two signs. Raises `InputError` for text that is not Unicode.
        """
        joined = BEGIN.join(["", *texts, ""])
        if joined.count(BEGIN) > len(texts) + 1 or CUT in joined:
            return None
        text, space = _with_cuts(joined)
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise TextError(NO_CHARACTER) from error
        read = np.frombuffer(raw, np.uint8)
        edges = _edges(read, space)
        is_begin = read[edges[:-1]] == ord(BEGIN)
        starts, stops = edges[:-1] + ~is_begin, edges[1:]
        return self._find(raw, starts, stops), np.flatnonzero(is_begin)

    def _find(self, raw: bytes, starts: Numbers, stops: Numbers) -> Numbers:
        lengths = stops - starts
        hashes = _hashes(raw, starts, lengths)
        slots = hashes[0] & np.uint64(SLOTS - 1)
        numbers = self._numbers[slots]
        is_found = (self._hashes[0][slots] == hashes[0]) & (self._hashes[1][slots] == hashes[1])
        others = np.flatnonzero(~is_found | (lengths > LONGEST))
        places = zip(starts[others].tolist(), stops[others].tolist(), strict=True)
        words = (raw[start:stop] for start, stop in places)
        numbers[others] = np.fromiter(map(self.__getitem__, words), np.int32, len(others))
        self._numbers[slots[others]] = numbers[others]
        self._hashes[:, slots[others]] = hashes[:, others]
        return numbers

    def __missing__(self, word: bytes) -> int:
        number = self[word] = len(self)
        return number


def _with_cuts(text: str) -> tuple[str, str]:
    """Return the text, and the sign that stands for a space between words.

    In almost all texts that is a space, if there is no white space of ASCII on either side.
    """
    others = [] if text.isascii() else [sign for sign in OTHER_SPACES if sign in text]
    if any(f" {sign}" in text or f"{sign} " in text for sign in others):
        return ALONE.sub(CUT, text), CUT
    return text, " "


def _edges(read: Numbers, space: str) -> Numbers:
    """The places of all spaces between words, and of the signs around texts, in order."""
    edges = np.flatnonzero((read == ord(space)) | (read == ord(BEGIN)))
    inner = edges[1:-1]
    near_space = IS_SPACE[read[inner - 1]] | IS_SPACE[read[inner + 1]]
    are_edges = (read[inner] == ord(BEGIN)) | ~near_space
    return np.concatenate([edges[:1], inner[are_edges], edges[-1:]])


def _hashes(raw: bytes, starts: Numbers, lengths: Numbers) -> Numbers:
    """Two hashes of the first `LONGEST` bytes of each word: of eight bytes they are distinct."""
    first, second = FACTORS
    windows = np.ndarray(len(raw), np.uint64, raw + bytes(8), strides=(1,))  # from any byte on
    sizes = lengths.astype(np.uint64)
    hashes = np.stack([sizes * first, sizes * second])
    rest = np.arange(len(starts))
    for n in range(0, LONGEST, 8):
        left = lengths[rest] - n
        eight = windows[starts[rest] + n] & LOW_BYTES[np.minimum(left, 8)]
        mixed = (hashes[0, rest] ^ eight) * first, (hashes[1, rest] + eight) * second
        for hashed, new in zip(hashes, mixed, strict=True):
            hashed[rest] = new ^ (new >> np.uint64(32))
        rest = rest[left > 8]
        if not len(rest):
            break
    return hashes
