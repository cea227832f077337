"""Encoded examples in compact arrays: two or four bytes a token instead of Python integers."""

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
    """One example in ids; `index` is its place in its split of the corpus.

    | task           | `tokens`        | `targets`                                            |
    |----------------|-----------------|------------------------------------------------------|
    | language       | bos text        | text eos                                             |
    | translation    | source eos      | target eos; the decoder reads them shifted after bos |
    | classification | bos text eos    | the number of the class                              |
    | tagging        | bos words eos   | the number of the tag at each word's first piece     |

    A conversation is a text for a language model, whose targets are -100 outside of answers. An
    image, a clip or a series has a `signal`, its pixels, frames or steps, and no tokens; its
    targets are the number of its class, or its text and eos. Where every output of the model has to
    say something of its own, `values` are the targets: numbers, or for each label whether the text
    has it. Of two texts, `types` has the type of each token, and `spans` where the first starts and
    stops, and then the second: without their special tokens where the two are read together, with
    them where each is read by itself.
    """

    index: int
    tokens: list[int]
    targets: list[int]
    signal: Shaped[Tensor, "channels *size"] | None = None
    values: Shaped[Tensor, "*outputs"] | None = None
    types: Sequence[int] = ()
    spans: Sequence[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Rows of ids in one array, each from its start and of its length."""

    ids: Ids
    starts: Ids
    lengths: Ids

    @classmethod
    def side_by_side(cls, ids: Ids, lengths: Ids) -> "Rows":
        """Rows that follow one another without a gap."""
        return cls(ids, np.cumsum(lengths) - lengths, lengths)

    def __getitem__(self, i: int) -> list[int]:
        start = int(self.starts[i])
        return self.ids[start : start + int(self.lengths[i])].tolist()

    def arrays(self) -> Iterator[Ids]:
        """Each row as an array."""
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield np.ascontiguousarray(self.ids[start : start + length])

    def count_except(self, nothing: int) -> Ids:
        """How many ids of each row are other than one."""
        before = np.concatenate([[0], np.cumsum(self.ids != nothing)])
        return before[self.starts + self.lengths] - before[self.starts]


class Compact(Sequence[Encoded]):
    """Encoded examples whose ids lie in arrays; each example is made when it is asked for.

    What is to be said may lie in the array of what is read: the targets of a language model are its
    tokens, one place further on. Images have no ids, and are in no such sequence.
    """

    def __init__(
        self,
        tokens: Rows,
        targets: Rows,
        places: Ids | None = None,
        values: Sequence[Tensor] | None = None,
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
        """The same examples, their ids in arrays of the smallest type that holds them all."""
        tokens, targets, types, spans = array("q"), array("q"), array("q"), array("q")
        index, read, said = array("q"), array("q"), array("q")
        values: list[Tensor] = []
        for one in examples:
            index.append(one.index)
            tokens.extend(one.tokens)
            read.append(len(one.tokens))
            types.extend(one.types)
            spans.extend(one.spans)
            targets.extend(one.targets)
            said.append(len(one.targets))
            if one.values is not None:
                values.append(one.values)
        return cls(
            Rows.side_by_side(narrow(tokens), np.array(read)),
            Rows.side_by_side(narrow(targets), np.array(said)),
            np.array(index),
            values or None,
            Rows.side_by_side(narrow(types), np.array(read)) if types else None,
            Rows.side_by_side(narrow(spans), np.full(len(index), 4)) if spans else None,
        )

    @classmethod
    def documents(cls, ids: Ids, lengths: Ids) -> "Compact":
        """Texts for a language model, side by side: each of its length, and after it its end."""
        starts = np.cumsum(lengths + 1) - lengths - 1
        return cls(Rows(ids, starts, lengths), Rows(ids, starts + 1, lengths))

    @classmethod
    def as_documents(cls, examples: Sequence[Encoded]) -> "Compact":
        """The examples of a language model, in the form of `documents`."""
        if isinstance(examples, Compact) and examples.places is None:
            return examples
        ids, lengths = array("q"), array("q")
        for one in examples:
            ids.extend((*one.tokens, one.targets[-1]))
            lengths.append(len(one.tokens))
        return cls.documents(narrow(ids), np.array(lengths))

    def __len__(self) -> int:
        return len(self.tokens.lengths)

    def __eq__(self, other: object) -> bool:
        """Whether the other sequence has the same examples."""
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
        """The same examples in pieces of at most so many tokens, each with its targets."""
        n = -(-self.tokens.lengths // most)
        row = np.repeat(np.arange(len(self)), n)
        at = most * (np.arange(len(row)) - np.repeat(np.cumsum(n) - n, n))
        lengths = np.minimum(self.tokens.lengths[row] - at, most)
        tokens = Rows(self.tokens.ids, self.tokens.starts[row] + at, lengths)
        targets = Rows(self.targets.ids, self.targets.starts[row] + at, lengths)
        return Compact(tokens, targets, row if self.places is None else self.places[row])

    def with_targets(self, nothing: int) -> "Compact":
        """The examples of a language model that have a target other than `nothing`."""
        if self.targets.ids is self.tokens.ids:  # every next token is one
            return self
        some = np.flatnonzero(self.targets.count_except(nothing))
        tokens, targets = (
            Rows(rows.ids, rows.starts[some], rows.lengths[some])
            for rows in (self.tokens, self.targets)
        )
        return Compact(tokens, targets, some if self.places is None else self.places[some])


def narrow(numbers: "array[int]") -> Ids:
    """The numbers in two bytes each, or four where they need them; with a sign if one has it."""
    wide = np.frombuffer(numbers, np.int64) if numbers else np.zeros(0, np.int64)
    low, high = (int(wide.min()), int(wide.max())) if len(wide) else (0, 0)
    types = (np.int16, np.int32) if low < 0 else (np.uint16, np.uint32)
    for one in types:
        if np.iinfo(one).min <= low and high <= np.iinfo(one).max:
            return wide.astype(one)
    return wide


def texts_of(example: Encoded) -> tuple[list[int], list[int]]:
    """The two texts of a pair, each of which is read by itself."""
    _, stop, start, _ = example.spans
    return example.tokens[:stop], example.tokens[start:]


def side_by_side(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """The spans of two texts, the second right after the first."""
    return [0, len(one), len(one), len(one) + len(other)]


def shortened_apart(example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
    """Two texts that are read each by itself, each cut to `max_len` positions."""
    one, other = (keep_special(text, max_len, special) for text in texts_of(example))
    return replace(example, tokens=one + other, spans=side_by_side(one, other))


def shortened_pair(example: Encoded, max_len: int) -> Encoded:
    """Two texts cut to `max_len` positions in all, the longer one first, each at its end.

    As `truncation="longest_first"` of Hugging Face's tokenizers, which leaves an odd place to the
    longer text. All special tokens stay, wherever they stand.
    """
    starts, stops = example.spans[::2], example.spans[1::2]
    n, m = stops[0] - starts[0], stops[1] - starts[1]
    room = max_len - (len(example.tokens) - n - m)
    if room < 2:
        raise InputError(
            f"max_len = {max_len} has no room for a token of each of two texts beside "
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
    """At most `n` ids: the first, and the `special` ones at the end.

    Those are so many before the text and so many after it. Raises `InputError` where no position is
    left for text.
    """
    if len(ids) <= n:
        return ids
    if n <= sum(special):
        raise InputError(
            f"max_len = {n} has no room for text beside {sum(special)} special tokens: raise it"
        )
    return ids[: n - special[1]] + ids[len(ids) - special[1] :]
