"""Encoded examples in compact arrays: two or four bytes a token instead of Python integers."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray
from torch import Tensor

from addnorm.data.examples import Task

Ids = NDArray[Any]
"""Ids in one of numpy's types of whole numbers."""


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
    has it. Of two texts, `types` says of which each token is (0 or 1).
    """

    index: int
    tokens: list[int]
    targets: list[int]
    signal: Shaped[Tensor, "channels *size"] | None = None
    values: Shaped[Tensor, "*outputs"] | None = None
    types: Sequence[int] = ()


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
    ) -> None:
        self.tokens = tokens
        self.targets = targets
        self.places = places
        self.values = values
        self.types = types

    @classmethod
    def of(cls, examples: Iterable[Encoded]) -> "Compact":
        """The same examples, their ids in arrays of the smallest type that holds them all."""
        tokens, targets, types = array("q"), array("q"), array("q")
        index, read, said = array("q"), array("q"), array("q")
        values: list[Tensor] = []
        for one in examples:
            index.append(one.index)
            tokens.extend(one.tokens)
            read.append(len(one.tokens))
            types.extend(one.types)
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
        return Encoded(index, self.tokens[n], self.targets[n], values=values, types=types)

    def cut(self, most: int) -> "Compact":
        """The same examples in pieces of at most so many tokens, each with its targets."""
        n = -(-self.tokens.lengths // most)
        row = np.repeat(np.arange(len(self)), n)
        at = most * (np.arange(len(row)) - np.repeat(np.cumsum(n) - n, n))
        lengths = np.minimum(self.tokens.lengths[row] - at, most)
        tokens = Rows(self.tokens.ids, self.tokens.starts[row] + at, lengths)
        targets = Rows(self.targets.ids, self.targets.starts[row] + at, lengths)
        return Compact(tokens, targets, row if self.places is None else self.places[row])


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
    """The two texts of a pair."""
    start = list(example.types).index(1)
    return example.tokens[:start], example.tokens[start:]


def shortened(task: Task, example: Encoded, max_len: int, *, apart: bool = False) -> Encoded:
    """The example cut to `max_len` positions; what is read keeps its eos, what is said does not.

    Two texts that are read `apart` have as many positions each.
    """
    tokens, targets = example.tokens, example.targets
    if apart:
        one, other = (_keep_last(text, max_len) for text in texts_of(example))
        return replace(example, tokens=one + other, types=[0] * len(one) + [1] * len(other))
    if task == "language":
        return replace(example, tokens=tokens[:max_len], targets=targets[:max_len])
    if task == "translation":
        return replace(example, tokens=_keep_last(tokens, max_len), targets=targets[:max_len])
    if 1 in example.types and len(tokens) > max_len:
        return _shortened_pair(example, max_len)
    return replace(
        example,
        types=example.types[:max_len],
        tokens=_keep_last(tokens, max_len),
        targets=_keep_last(targets, max_len) if task == "tagging" else targets,
    )


def _shortened_pair(example: Encoded, max_len: int) -> Encoded:
    """Two texts cut to `max_len` positions in all, the longer one first; each keeps its end.

    As `truncation="longest_first"` of Hugging Face's tokenizers, which leaves an odd place to the
    longer text. The start token stands before the first.
    """
    start = list(example.types).index(1)
    n, m = start - 2, len(example.tokens) - start - 1
    room = max(0, max_len - 3)
    second = 1 + (min(m, room // 2) if n > m else room - min(n, room // 2))
    first = max_len - second
    tokens = _keep_last(example.tokens[:start], first) + _keep_last(example.tokens[start:], second)
    return replace(example, tokens=tokens, types=[0] * first + [1] * second)


def _keep_last(ids: list[int], n: int) -> list[int]:
    return ids if len(ids) <= n else ids[: n - 1] + ids[-1:]
