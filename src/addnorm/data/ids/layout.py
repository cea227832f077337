"""Layouts: how inputs and targets of examples are cut and batched together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from addnorm.data.ids.compact import (
    IGNORE,
    Compact,
    Encoded,
    keep_special,
    shortened_apart,
    shortened_pair,
    texts_of,
)
from addnorm.data.tokenizing.pieces import Ids

SOURCE = {"inputs": "source", "valid": "source_valid"}
"""The names in an encoder–decoder of an encoder's arguments."""

Arranged = tuple[dict[str, Tensor], Shaped[Tensor, "..."]]
"""The arguments of a model, and the targets."""


Positions = Callable[[Sequence[int]], int]
"""The number of a model's outputs for the tokens of a text, or for the size of a signal."""


@dataclass(frozen=True)
class Padding:
    """The start and padding ids of a batch, and the function from its longest row to its width."""

    bos_id: int = 0
    pad_id: int = 0
    width: Callable[[int], int] = int


@dataclass(frozen=True)
class Layout:
    """One target for a whole example, or as many for every example: classes, numbers, positions.

    The targets of a batch are `[batch]` where each example has one, else `[batch, n]`.
    """

    def lengths(self, read: Ids, targets: Ids) -> Ids:
        """Return the lengths of examples, given the numbers of input tokens and of targets."""
        return read

    def lengths_of(self, examples: Sequence[Encoded]) -> list[int]:
        """Return the length of each example: of its tokens, frames or steps, or its width."""
        if isinstance(examples, Compact):
            return self.lengths(examples.tokens.lengths, examples.targets.lengths).tolist()
        targets = np.array([len(example.targets) for example in examples], np.int64)
        if any(example.signal is not None for example in examples):
            signals = [example.signal for example in examples]
            read = np.array([0 if signal is None else signal.shape[-1] for signal in signals])
            return np.maximum(read, targets).tolist()
        read = np.array([len(example.tokens) for example in examples], np.int64)
        return self.lengths(read, targets).tolist()

    def rows(self, example: Encoded) -> Sequence[list[int]]:
        """Return the rows that an example takes in the inputs of a batch: one, or one per text."""
        return [example.tokens]

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """Return the example cut to `max_len` positions.

        The input keeps its special tokens: `special` counts those before the text and after it.
        Raises `InputError` where no position is left for text.
        """
        if example.spans and len(example.tokens) > max_len:
            return shortened_pair(example, max_len)
        return replace(example, tokens=keep_special(example.tokens, max_len, special))

    def have_targets(self, examples: Sequence[Encoded]) -> Sequence[bool]:
        """Return whether each example has a target; values count if any example has them."""
        if isinstance(examples, Compact) and examples.values is None:
            return (examples.targets.count_except(IGNORE) > 0).tolist()
        has_values = [example.values is not None for example in examples]
        if any(has_values):
            return has_values
        return [any(i != IGNORE for i in example.targets) for example in examples]

    def problem(self, example: Encoded, targets: Sequence[int]) -> str:
        """Return the problem with the number of targets; empty if there is none.

        `targets` are those of another example, or empty.
        """
        n, others = len(example.targets), len(targets)
        if not n or not others or n == others:
            return ""
        return (
            f"{n} targets, and another example has {others}: the layout {type(self).__name__} has "
            "as many for every example"
        )

    def have_outputs(self, examples: Sequence[Encoded]) -> Sequence[bool]:
        """Return whether a model has enough outputs for each example's targets; here always."""
        return [True] * len(examples)

    def for_input(self, n_positions: Positions) -> "Layout":
        """Return the layout for models whose number of outputs depends on the input; here self."""
        return self

    def inputs(self, examples: Sequence[Encoded], padding: Padding) -> dict[str, Tensor]:
        """Return the texts as an encoder's arguments: ids, mask of real tokens, types."""
        rows = [row for example in examples for row in self.rows(example)]
        width = padding.width(max(map(len, rows)))
        inputs = with_valid("inputs", "valid", tensors(rows), padding.pad_id, width)
        if any(example.types for example in examples):
            inputs["types"] = padded(tensors([[*example.types] for example in examples]), 0, width)
        return inputs

    def arranged(
        self, inputs: Mapping[str, Tensor], examples: Sequence[Encoded], padding: Padding
    ) -> Arranged:
        """Return a model's arguments and the targets, given an encoder's arguments."""
        values = [example.values for example in examples if example.values is not None]
        if values:
            return {**inputs}, torch.stack(values)
        return {**inputs}, self.targets([example.targets for example in examples], padding)

    def targets(self, targets: Sequence[list[int]], padding: Padding) -> Shaped[Tensor, "..."]:
        """Return the targets of a batch as a tensor."""
        rows = torch.tensor(targets)
        return rows[:, 0] if rows.ndim == 2 and rows.shape[1] == 1 else rows


ONE_EACH = Layout()
"""The layout of most tasks with a target for the whole input."""


class Apart(Layout):
    """One target for two separately encoded texts."""

    def lengths_of(self, examples: Sequence[Encoded]) -> list[int]:
        """Return the length of the longer text of each pair."""
        return [max(map(len, texts_of(example))) for example in examples]

    def rows(self, example: Encoded) -> Sequence[list[int]]:
        """Return the two texts as two rows."""
        return texts_of(example)

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """Return the example with each text cut to `max_len` positions."""
        return shortened_apart(example, max_len, special)


class PerToken(Layout):
    """A target, or -100, for every input token, as for tags."""

    def problem(self, example: Encoded, targets: Sequence[int]) -> str:
        """Return the problem if the numbers of targets and tokens differ; else an empty string."""
        n, read = len(example.targets), len(example.tokens)
        return f"{n} targets for {read} tokens: give each one" if n and read and n != read else ""

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """Return the example with tokens and targets cut to the same length."""
        targets = keep_special(example.targets, max_len, special)
        return replace(super().shortened(example, max_len, special), targets=targets)

    def targets(self, targets: Sequence[list[int]], padding: Padding) -> Shaped[Tensor, "..."]:
        """`[batch, seq]`."""
        return padded(tensors(targets), IGNORE, padding.width(max(map(len, targets))))


class NextToken(PerToken):
    """The next token as the target of every input token; in conversations, only in answers."""

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """Return the first tokens and targets; a cut text has no end to learn."""
        cut = (example.tokens[:max_len], example.targets[:max_len])
        return replace(example, tokens=cut[0], targets=cut[1])

    def arranged(
        self, inputs: Mapping[str, Tensor], examples: Sequence[Encoded], padding: Padding
    ) -> Arranged:
        """Return a decoder's arguments, named `tokens`, and the targets."""
        read, targets = super().arranged(inputs, examples, padding)
        return {"tokens" if name == "inputs" else name: x for name, x in read.items()}, targets


class TargetSequence(Layout):
    """A target sequence of another length."""

    def problem(self, example: Encoded, targets: Sequence[int]) -> str:
        """Return an empty string: any number of targets is valid."""
        return ""

    def lengths(self, read: Ids, targets: Ids) -> Ids:
        """Return the length of the longer side of each example."""
        return np.maximum(read, targets)

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """Return the example with both sides cut; the input keeps its special tokens."""
        read = keep_special(example.tokens, max_len, special)
        return replace(example, tokens=read, targets=example.targets[:max_len])

    def targets(self, targets: Sequence[list[int]], padding: Padding) -> Shaped[Tensor, "..."]:
        """`[batch, target_seq]`, -100 after the end of each."""
        return padded(tensors(targets), IGNORE, padding.width(max(map(len, targets))))


def last_side(size: Sequence[int]) -> int:
    """Return the tokens of a text, the frames or steps of a signal, or an image's width."""
    return size[-1]


@dataclass(frozen=True)
class Aligned(TargetSequence):
    """A sequence whose tokens are aligned with the outputs of a model, without a decoder (CTC).

    Each token takes an output of its own, and two equal neighbours a blank between them (Graves et
    al. 2006, §3.1): `n + Σ_i [y_i = y_{i+1}]` outputs at least.
    """

    n_positions: Positions = last_side

    def for_input(self, n_positions: Positions) -> Layout:
        """Return the layout for models whose number of outputs depends on the input."""
        return replace(self, n_positions=n_positions)

    def have_outputs(self, examples: Sequence[Encoded]) -> Sequence[bool]:
        """Return whether each example has enough outputs to align its targets with."""
        return [
            fewest_outputs(example.targets) <= self.n_positions(size_of(example))
            for example in examples
        ]


def fewest_outputs(targets: Sequence[int]) -> int:
    """Return the fewest outputs that targets can be aligned with: `n + Σ_i [y_i = y_{i+1}]`."""
    return len(targets) + sum(left == right for left, right in pairwise(targets))


def size_of(example: Encoded) -> Sequence[int]:
    """Return the number of tokens read, or the sides of a signal without its channels."""
    return [len(example.tokens)] if example.signal is None else example.signal.shape[1:]


class SourceAndTarget(TargetSequence):
    """A target sequence of another length; a decoder reads it shifted by the start token."""

    def arranged(
        self, inputs: Mapping[str, Tensor], examples: Sequence[Encoded], padding: Padding
    ) -> Arranged:
        """Return the source and the shifted target as arguments, and the targets."""
        rows = [example.targets for example in examples]
        shifted = tensors([[padding.bos_id, *row[:-1]] for row in rows])
        width = padding.width(max(map(len, rows)))
        target = with_valid("target", "target_valid", shifted, padding.pad_id, width)
        source = {SOURCE[name]: tensor for name, tensor in inputs.items() if name in SOURCE}
        return {**source, **target}, self.targets(rows, padding)


class PicturesAndTexts(Layout):
    """Pairs of a picture and a text; the target is the index of the text in the batch."""

    def lengths_of(self, examples: Sequence[Encoded]) -> list[int]:
        """Return the number of tokens of each text."""
        return [len(example.tokens) for example in examples]

    def arranged(
        self, inputs: Mapping[str, Tensor], examples: Sequence[Encoded], padding: Padding
    ) -> Arranged:
        """Return pictures and texts as arguments of two encoders, and the targets."""
        texts = self.texts([example.tokens for example in examples], padding)
        return {"images": inputs["inputs"], **texts}, torch.arange(len(examples))

    def texts(self, rows: Sequence[list[int]], padding: Padding) -> dict[str, Tensor]:
        """Return the ids of texts, and a mask of the real tokens if some are padded."""
        width = padding.width(max(map(len, rows)))
        return with_valid("tokens", "valid", tensors(rows), padding.pad_id, width)


class SeriesWindows(Layout):
    """A target for every variable at every step of the horizon."""

    def have_targets(self, examples: Sequence[Encoded]) -> Sequence[bool]:
        """Return true for every window."""
        return [True] * len(examples)


def tensors(rows: Sequence[list[int]]) -> list[Int[Tensor, " _"]]:
    """Return each row of ids as a tensor."""
    return [torch.tensor(row) for row in rows]


def padded(rows: Sequence[Int[Tensor, " _"]], value: int, width: int) -> Int[Tensor, "batch seq"]:
    """Return the rows as one tensor, padded on the right with `value`."""
    out = torch.full((len(rows), width), value)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out


def with_valid(
    name: str, valid_name: str, rows: Sequence[Int[Tensor, " _"]], pad_id: int, width: int
) -> dict[str, Tensor]:
    """Return the rows as a model's argument, with a mask if some are padded."""
    tokens = {name: padded(rows, pad_id, width)}
    lengths = torch.tensor([len(row) for row in rows])
    if bool((lengths == width).all()):
        return tokens
    valid: Bool[Tensor, "batch seq"] = torch.arange(width) < lengths[:, None]
    return {**tokens, valid_name: valid}
