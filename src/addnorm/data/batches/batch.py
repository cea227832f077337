"""Batches, how signals become their inputs, and the loaders that make the batches of an epoch."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from math import isqrt
from random import Random
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from addnorm.data.example import PROPERTIES, Medium
from addnorm.data.examples import Report
from addnorm.data.ids.compact import IGNORE, Encoded
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.ids.layout import Padding
from addnorm.data.tokenizing.pieces import Ids
from addnorm.errors import InputError

Item = TypeVar("Item")


@dataclass(frozen=True)
class Batch:
    """The keyword arguments of a model's `forward`, with the targets.

    `targets` is -100 where nothing is to be predicted; `n_tokens` counts the others, and all of
    those that are numbers or truth values. `indices` has the index of each row's example in its
    split of the corpus; for windows, the position in the stream where each starts. For mixed images
    the loss takes `soft_targets`, the probabilities of all classes; `targets` are then the classes
    before mixing.
    """

    inputs: dict[str, Tensor]
    targets: Shaped[Tensor, "..."]
    n_tokens: int
    indices: list[int]
    soft_targets: Float[Tensor, "batch classes"] | None = None

    @classmethod
    def of(
        cls, inputs: dict[str, Tensor], targets: Shaped[Tensor, "..."], indices: list[int]
    ) -> "Batch":
        """Build a batch and count its targets."""
        return cls(inputs, targets, counted(targets), indices)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on a device."""
        inputs = {name: tensor.to(device) for name, tensor in self.inputs.items()}
        soft = None if self.soft_targets is None else self.soft_targets.to(device)
        return replace(self, inputs=inputs, targets=self.targets.to(device), soft_targets=soft)

    def doubled(self) -> "Batch":
        """Return the batch followed by a copy of itself, for R-Drop."""

        def rows(tensor: Tensor) -> Tensor:
            return torch.cat([tensor, tensor])

        soft = None if self.soft_targets is None else rows(self.soft_targets)
        inputs = {name: rows(tensor) for name, tensor in self.inputs.items()}
        return Batch(inputs, rows(self.targets), 2 * self.n_tokens, 2 * self.indices, soft)


@runtime_checkable
class Batches(Protocol):
    """A source of batches: a pure function of the epoch and the position in it."""

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        ...

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, starting with number `start`."""
        ...


def counted(targets: Shaped[Tensor, "..."]) -> int:
    """Return the number of targets; class numbers of -100 do not count."""
    return int((targets != IGNORE).sum()) if targets.dtype == torch.long else targets.numel()


class Loader(ABC, Generic[Item]):
    """The batches of each epoch: `plan` chooses the items of each, `build` makes one.

    A plan is a pure function of the seed and the epoch, and has the same number of batches in every
    epoch; so a run needs only (epoch, position) to resume.
    """

    @abstractmethod
    def plan(self, epoch: int) -> Sequence[Sequence[Item]]:
        """Return the items of each batch of an epoch."""

    @abstractmethod
    def build(self, items: Sequence[Item]) -> Batch:
        """Return the batch of these items."""

    @cached_property
    def _length(self) -> int:
        return len(self.plan(0))

    def __len__(self) -> int:
        return self._length

    def batches(self, epoch: int = 0, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch, starting with number `start`."""
        plan = self.plan(epoch)
        for i in range(start, len(plan)):
            yield self.build(plan[i])


@dataclass(frozen=True)
class Loaders:
    """A loader for each split with examples; only the order of `train` changes with the epoch.

    `reports` are those of the corpus, with the examples that were too long for the batches.
    """

    train: Loader[Any]
    valid: Loader[Any] | None
    test: Loader[Any] | None
    reports: Mapping[str, Report]

    @classmethod
    def of(
        cls,
        corpus: EncodedCorpus,
        seed: int,
        loader: Callable[[Sequence[Encoded], int | None], Loader[Any]],
    ) -> "Loaders":
        """Build a loader for each split with examples; only the loader of `train` is seeded."""
        return cls(
            loader(corpus.train, seed),
            loader(corpus.valid, None) if len(corpus.valid) else None,
            loader(corpus.test, None) if len(corpus.test) else None,
            corpus.reports,
        )


def check_medium(corpus: EncodedCorpus, kind: str, medium: Medium) -> None:
    """Raise `InputError` unless the corpus has the medium that this kind of batches needs."""
    if corpus.medium != medium:
        raise InputError(
            f'batching kind = "{kind}" is for {medium}; {corpus.medium} '
            f"{'needs' if corpus.medium in ('text', 'audio') else 'need'} "
            f'kind = "{PROPERTIES[corpus.medium].batching}"'
        )


def epoch_random(seed: int | None, epoch: int) -> Random | None:
    """Return the random generator of an epoch; None, for a fixed order, without a seed."""
    return None if seed is None else Random(f"seed {seed}, epoch {epoch}")


def chunks(items: Sequence[Item], size: int) -> list[Sequence[Item]]:
    """The items in groups of `size`; the last may be smaller."""
    return [items[i : i + size] for i in range(0, len(items), size)]


def by_width(items: Sequence[Item], width: Callable[[Item], int], most: int) -> list[list[Item]]:
    """Group items of similar width into batches, each of at most `most` including padding."""
    items = sorted(items, key=width)
    return cut_at(items, stops_of([*map(width, items)], most))


def stops_of(widths: Sequence[int], most: int) -> list[int]:
    """Return where batches of at most `most` end, padding included, given rising widths."""
    stops, n = [0], len(widths)
    while (start := stops[-1]) < n:
        fits = partial(_padded, widths, start)
        stops.append(bisect_right(range(n), most, start + 1, key=fits))
    return stops[1:]


def _padded(widths: Sequence[int], start: int, last: int) -> int:
    """The size of a batch from `start` to `last`, which is the widest."""
    return (last - start + 1) * widths[last]


def cut_at(items: Sequence[Item], stops: Sequence[int]) -> list[list[Item]]:
    """Return the items in groups that end at `stops`."""
    return [[*items[start:stop]] for start, stop in pairwise([0, *stops])]


def inputs_of(medium: Medium, signals: Sequence[Tensor]) -> dict[str, Tensor]:
    """Images of one size, or clips of any length, as the inputs of an encoder."""
    padded = PROPERTIES[medium].padded
    return side_by_side(signals) if padded else {"inputs": scaled(torch.stack([*signals]))}


def side_by_side(clips: Sequence[Float[Tensor, "n_mels _"]]) -> dict[str, Tensor]:
    """Stack clips as a model's inputs, with a mask of the real frames if some are padded."""
    lengths = torch.tensor([clip.shape[-1] for clip in clips])
    width = int(lengths.max())
    inputs = torch.zeros(len(clips), clips[0].shape[0], width)
    for row, clip in zip(inputs, clips, strict=True):
        row[:, : clip.shape[-1]] = clip
    if bool((lengths == width).all()):
        return {"inputs": inputs}
    return {"inputs": inputs, "valid": torch.arange(width) < lengths[:, None]}


def scaled(
    images: Shaped[Tensor, "batch channels height width"],
) -> Float[Tensor, "batch channels height width"]:
    """Scale the images to -1 (black) … 1 (white)."""
    return images.float() / 127.5 - 1


def batch_of(
    corpus: EncodedCorpus, examples: Sequence[Encoded], inputs: Mapping[str, Tensor]
) -> Batch:
    """The batch with these inputs, and targets in the layout of the corpus."""
    padding = Padding(corpus.bos_id, corpus.pad_id)
    arguments, targets = corpus.layout.arranged(inputs, examples, padding)
    return Batch.of(arguments, targets, [example.index for example in examples])


BLOCK = 2**16
"""The most random words drawn at once."""


def shuffled(rng: Random, n: int) -> Ids:
    """Return the numbers below `n` in the order of `rng.shuffle`, but faster.

    Python's shuffle takes half a microsecond or more for each number: seconds for the four million
    windows of a text of a gigabyte. The generator ends in the same state.
    """
    words = _Words(rng)
    order = np.arange(n, dtype=np.uint32 if n < 2**32 else np.int64)
    first = np.zeros(n, np.int32)
    i = n - 1
    for places in _places(words, n):
        while len(places):
            size = _disjoint(places[: max(isqrt(i), 1)], i, first)
            last, others = order[i - size + 1 : i + 1][::-1], places[:size]
            moved = order[others]
            order[others] = last
            last[:] = moved
            i -= size
            places = places[size:]
    words.end()
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


def _places(words: "_Words", n: int) -> Iterator[Ids]:
    """Yield the results of `rng.randrange(i + 1)` for each i from n - 1 down to 1.

    It takes the highest bits of the next word, as many as i + 1 has, and tries the next word if
    their value is more than i.
    """
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
        self._rng, self._before, self._used = rng, rng.getstate(), 0
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
        self._used += n

    def end(self) -> None:
        """Put the generator after the last word that was used."""
        self._rng.setstate(self._before)
        if self._used:
            self._rng.getrandbits(32 * self._used)
