"""Encoded examples in compact arrays: two or four bytes per token instead of Python integers."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import numpy as np
from jaxtyping import Shaped
from torch import Tensor

from addnorm.data.tokenizing.pieces import Ids
from addnorm.errors import InputError

IGNORE = -100
"""The target where nothing is to be predicted."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """One example in ids; `index` is its index in its split of the corpus.

    ============== =============== ====================================================
    task           `tokens`        `targets`
    ============== =============== ====================================================
    language       bos text        text eos
    translation    source eos      target eos; the decoder reads them shifted after bos
    classification bos text eos    the number of the class
    tagging        bos words eos   the number of the tag at each word's first piece
    ============== =============== ====================================================

    A conversation is a text for a language model, whose targets are -100 outside of answers. An
    image, a clip or a series has a `signal` (its pixels, frames or steps) and no tokens; its
    targets are the number of its class, or its text and eos. Where every output of the model has a
    target, these are `values`: numbers, or for each label whether the text has it. For two texts,
    `types` has the type of each token, and `spans` the start and stop of the first and then of the
    second: without their special tokens where the two are encoded together, with them where each is
    encoded separately.
    """

    index: int
    tokens: list[int]
    targets: list[int]
    signal: Shaped[Tensor, "channels *size"] | None = None
    values: Shaped[Tensor, "*outputs"] | None = None
    types: Sequence[int] = ()
    spans: Sequence[int] = ()

    def with_targets(self, targets: list[int]) -> "Encoded":
        """Return the same input with these targets."""
        unchanged = (self.signal, self.values, self.types, self.spans)
        return Encoded(self.index, self.tokens, targets, *unchanged)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of ids in one array, with the start and the length of each row."""

    ids: Ids
    starts: Ids
    lengths: Ids

    @classmethod
    def side_by_side(cls, ids: Ids, lengths: Ids) -> "Rows":
        """Return rows of these lengths that follow one another without gaps."""
        return cls(ids, np.cumsum(lengths) - lengths, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int) -> list[int]:
        start = int(self.starts[i])
        return self.ids[start : start + int(self.lengths[i])].tolist()

    def arrays(self) -> Iterator[Ids]:
        """Yield each row as an array."""
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield np.ascontiguousarray(self.ids[start : start + length])

    def count_except(self, nothing: int) -> Ids:
        """Return the number of ids in each row that differ from `nothing`."""
        before = np.concatenate([[0], np.cumsum(self.ids != nothing)])
        return before[self.starts + self.lengths] - before[self.starts]


class Compact(Sequence[Encoded]):
    """Encoded examples with ids in shared arrays; each example is built on access.

    Targets may share the array of tokens: those of a language model are its tokens, shifted by one.
    Images have no ids and are not stored here.
    """

    def __init__(
        self,
        tokens: Rows,
        targets: Rows,
        places: Ids | None = None,
        values: Sequence[Tensor | None] | None = None,
        types: Rows | None = None,
        spans: Rows | None = None,
    ) -> None:
        self.tokens = tokens
        self.targets = targets
        self.places = places
        self.values = values
        self.types = types
        self.spans = spans

    @classmethod
    def of(cls, examples: Iterable[Encoded]) -> "Compact":
        """Return the same examples with ids in arrays of the smallest sufficient type."""
        tokens, targets, types, spans = array("q"), array("q"), array("q"), array("q")
        index, read, n_targets = array("q"), array("q"), array("q")
        values: list[Tensor | None] = []
        for example in examples:
            index.append(example.index)
            tokens.extend(example.tokens)
            read.append(len(example.tokens))
            types.extend(example.types)
            spans.extend(example.spans)
            targets.extend(example.targets)
            n_targets.append(len(example.targets))
            values.append(example.values)
        return cls(
            Rows.side_by_side(narrow(tokens), np.array(read)),
            Rows.side_by_side(narrow(targets), np.array(n_targets)),
            np.array(index),
            values if any(value is not None for value in values) else None,
            Rows.side_by_side(narrow(types), np.array(read)) if types else None,
            Rows.side_by_side(narrow(spans), np.full(len(index), 4)) if spans else None,
        )

    @classmethod
    def documents(cls, ids: Ids, lengths: Ids) -> "Compact":
        """Return the texts of a language model from one array of texts, each with its end token."""
        starts = np.cumsum(lengths + 1) - lengths - 1
        return cls(Rows(ids, starts, lengths), Rows(ids, starts + 1, lengths))

    @classmethod
    def as_documents(cls, examples: Sequence[Encoded]) -> "Compact":
        """Return the examples of a language model in the form made by `documents`."""
        if isinstance(examples, Compact) and examples.places is None:
            return examples
        ids, lengths = array("q"), array("q")
        for example in examples:
            ids.extend((*example.tokens, example.targets[-1]))
            lengths.append(len(example.tokens))
        return cls.documents(narrow(ids), np.array(lengths))

    def __len__(self) -> int:
        return len(self.tokens.lengths)

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence holds the same examples."""
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    @overload
    def __getitem__(self, i: int) -> Encoded: ...
    @overload
    def __getitem__(self, i: slice) -> list[Encoded]: ...
    def __getitem__(self, i: int | slice) -> Encoded | list[Encoded]:
        if isinstance(i, slice):
            return [self[n] for n in range(*i.indices(len(self)))]
        n = range(len(self))[i]
        index = n if self.places is None else int(self.places[n])
        values = None if self.values is None else self.values[n]
        types = () if self.types is None else self.types[n]
        spans = () if self.spans is None else self.spans[n]
        return Encoded(index, self.tokens[n], self.targets[n], None, values, types, spans)

    def cut(self, most: int) -> "Compact":
        """Return the examples cut into pieces of at most `most` tokens, each with its targets."""
        n = -(-self.tokens.lengths // most)
        row = np.repeat(np.arange(len(self)), n)
        at = most * (np.arange(len(row)) - np.repeat(np.cumsum(n) - n, n))
        lengths = np.minimum(self.tokens.lengths[row] - at, most)
        tokens = Rows(self.tokens.ids, self.tokens.starts[row] + at, lengths)
        targets = Rows(self.targets.ids, self.targets.starts[row] + at, lengths)
        return Compact(tokens, targets, row if self.places is None else self.places[row])

    def with_targets(self, nothing: int) -> "Compact":
        """Return the examples of a language model that have a target other than `nothing`."""
        if self.targets.ids is self.tokens.ids:  # every next token is a target
            return self
        indices = np.flatnonzero(self.targets.count_except(nothing))
        tokens, targets = (
            Rows(rows.ids, rows.starts[indices], rows.lengths[indices])
            for rows in (self.tokens, self.targets)
        )
        return Compact(tokens, targets, indices if self.places is None else self.places[indices])


def indices_of(examples: Sequence[Encoded]) -> list[int]:
    """Return the index of each example in its split of the corpus."""
    if isinstance(examples, Compact):
        places = examples.places
        return [*range(len(examples))] if places is None else places.tolist()
    return [example.index for example in examples]


def narrow(numbers: "array[int] | Ids") -> Ids:
    """Return the numbers in the smallest type of two or four bytes that can hold them."""
    wide = np.asarray(numbers)
    low, high = (int(wide.min()), int(wide.max())) if len(wide) else (0, 0)
    types = (np.int16, np.int32) if low < 0 else (np.uint16, np.uint32)
    for dtype in types:
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return wide.astype(dtype)
    return wide


def texts_of(example: Encoded) -> tuple[list[int], list[int]]:
    """Return both texts of a pair that was encoded separately."""
    _, stop, start, _ = example.spans
    return example.tokens[:stop], example.tokens[start:]


def side_by_side(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Return the spans of two texts, the second directly after the first."""
    return [0, len(first), len(first), len(first) + len(second)]


def shortened_apart(example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
    """Return a pair of separately encoded texts, each cut to `max_len` positions."""
    first, second = (keep_special(text, max_len, special) for text in texts_of(example))
    return replace(example, tokens=first + second, spans=side_by_side(first, second))


def shortened_pair(example: Encoded, max_len: int) -> Encoded:
    """Return two texts cut to `max_len` positions in all, by cutting the longer one first.

    This is `truncation="longest_first"` of Hugging Face's tokenizers, which leaves an odd position
    to the longer text. All special tokens stay.
    """
    starts, stops = example.spans[::2], example.spans[1::2]
    n, m = stops[0] - starts[0], stops[1] - starts[1]
    room = max_len - (len(example.tokens) - n - m)
    if room < 2:
        raise InputError(
            f"max_len = {max_len} has no room for a token of each of two texts in addition to "
            f"{max_len - room} special ones: raise max_len"
        )
    second = min(m, room // 2) if n > m else room - min(n, room // 2)
    cuts = [(starts[0] + room - second, stops[0]), (starts[1] + second, stops[1])]

    def cut(row: Sequence[int]) -> list[int]:
        left = [*row]
        for start, stop in sorted(cuts, reverse=True):
            del left[start:stop]
        return left

    def moved(place: int) -> int:
        return place - sum(max(0, min(place, stop) - start) for start, stop in cuts)

    spans = [moved(place) for place in example.spans]
    return replace(example, tokens=cut(example.tokens), types=cut(example.types), spans=spans)


def keep_special(ids: list[int], n: int, special: tuple[int, int]) -> list[int]:
    """Return at most `n` ids: the first ones, and the special ones at the end.

    `special` counts the special tokens before the text and after it. Raises `InputError` where no
    position is left for text.
    """
    if len(ids) <= n:
        return ids
    if n <= sum(special):
        raise InputError(
            f"max_len = {n} has no room for text in addition to {sum(special)} special tokens: "
            "raise it"
        )
    return ids[: n - special[1]] + ids[len(ids) - special[1] :]
