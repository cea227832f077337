"""Examples that are made of texts alone, in columns: each is built when it is asked for."""

from collections.abc import Iterator, Sequence
from itertools import chain, compress
from typing import overload

from addnorm.data.example import Example


class ExampleColumns(Sequence[Example]):
    """Examples of one kind, as a column of texts for each of its first fields; none is blank.

    The first column is the text to read, the second the text to write. Half a million examples
    take seconds to build, and reading, counting and encoding need their texts alone.
    """

    def __init__(self, kind: type[Example], columns: Sequence[list[str]]) -> None:
        self.kind = kind
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns[0])

    def __iter__(self) -> Iterator[Example]:
        return map(self.kind, *self.columns)

    @overload
    def __getitem__(self, i: int) -> Example: ...
    @overload
    def __getitem__(self, i: slice) -> "ExampleColumns": ...
    def __getitem__(self, i: int | slice) -> "Example | ExampleColumns":
        if isinstance(i, slice):
            return ExampleColumns(self.kind, [column[i] for column in self.columns])
        return self.kind(*(column[i] for column in self.columns))

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence holds the same examples."""
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))


def joined(parts: Sequence[Sequence[Example]]) -> Sequence[Example]:
    """Return the examples of all parts, in columns if all of them are."""
    columns = [part for part in parts if isinstance(part, ExampleColumns)]
    if len(columns) < len(parts) or len({part.kind for part in columns}) != 1:
        return [*chain.from_iterable(parts)]
    texts = zip(*(part.columns for part in columns), strict=True)
    return ExampleColumns(columns[0].kind, [[*chain.from_iterable(column)] for column in texts])


def chosen(examples: Sequence[Example], are_chosen: Sequence[bool]) -> Sequence[Example]:
    """Return the examples that are marked true."""
    if isinstance(examples, ExampleColumns):
        columns = [[*compress(column, are_chosen)] for column in examples.columns]
        return ExampleColumns(examples.kind, columns)
    return [*compress(examples, are_chosen)]


def kinds_of(examples: Sequence[Example]) -> set[type[Example]]:
    """Return the classes of examples."""
    return {examples.kind} if isinstance(examples, ExampleColumns) else {*map(type, examples)}


def source_texts(examples: Sequence[Example]) -> Sequence[str]:
    """Return the input text of each example (see `Example.source_text`)."""
    if isinstance(examples, ExampleColumns):
        return examples.columns[0]
    return [example.source_text() for example in examples]


def target_texts(examples: Sequence[Example]) -> Sequence[str]:
    """Return the target text of each example (see `Example.target_text`)."""
    if isinstance(examples, ExampleColumns) and examples.kind.writes:
        return examples.columns[1]
    return [example.target_text() for example in examples]
