"""Layouts: how the targets of an example belong to what is read, when it is cut and batched."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Shaped
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
from addnorm.data.ids.padding import padded, tensors, with_valid
from addnorm.data.tokenizing.pieces import Ids

SOURCE = {"inputs": "source", "valid": "source_valid"}
"""What an encoder–decoder calls the inputs of an encoder."""

Arranged = tuple[dict[str, Tensor], Shaped[Tensor, "..."]]
"""The arguments of a model, and the targets."""


@dataclass(frozen=True)
class Padding:
    """The ids before and after texts in a batch, and its width for a length of its longest row."""

    bos_id: int = 0
    pad_id: int = 0
    width: Callable[[int], int] = int


@dataclass(frozen=True)
class Layout:
    """One target for a whole example, or as many for every example: classes, numbers, places.

    The targets of a batch are `[batch]` where each example has one, else `[batch, n]`.
    """

    def lengths(self, read: Ids, targets: Ids) -> Ids:
        """How long examples are, of which so many tokens are read and so many are targets."""
        return read

    def lengths_of(self, examples: Sequence[Encoded]) -> list[int]:
        """How long each example is: its tokens, or the frames, steps or width of its signal."""
        if isinstance(examples, Compact):
            return self.lengths(examples.tokens.lengths, examples.targets.lengths).tolist()
        targets = np.array([len(one.targets) for one in examples], np.int64)
        if any(one.signal is not None for one in examples):
            read = np.array([0 if one.signal is None else one.signal.shape[-1] for one in examples])
            return np.maximum(read, targets).tolist()
        read = np.array([len(one.tokens) for one in examples], np.int64)
        return self.lengths(read, targets).tolist()

    def rows(self, example: Encoded) -> Sequence[list[int]]:
        """The rows of a batch in which an example is read: one, or one for each text."""
        return [example.tokens]

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """The example cut to `max_len` positions.

        What is read keeps its `special` tokens, so many before the text and after it. Raises
        `InputError` where no position is left for text.
        """
        if example.spans and len(example.tokens) > max_len:
            return shortened_pair(example, max_len)
        return replace(example, tokens=keep_special(example.tokens, max_len, special))

    def have_targets(self, examples: Sequence[Encoded]) -> Sequence[bool]:
        """Whether each example has something to predict."""
        if isinstance(examples, Compact) and examples.values is None:
            return (examples.targets.count_except(IGNORE) > 0).tolist()
        return [one.values is not None or any(i != IGNORE for i in one.targets) for one in examples]

    def inputs(self, examples: Sequence[Encoded], padding: Padding) -> dict[str, Tensor]:
        """The texts as the arguments of an encoder: the ids, what is no padding, and types."""
        rows = [row for example in examples for row in self.rows(example)]
        width = padding.width(max(map(len, rows)))
        inputs = with_valid("inputs", "valid", tensors(rows), padding.pad_id, width)
        if any(example.types for example in examples):
            inputs["types"] = padded(tensors([[*one.types] for one in examples]), 0, width)
        return inputs

    def arranged(
        self, inputs: Mapping[str, Tensor], examples: Sequence[Encoded], padding: Padding
    ) -> Arranged:
        """The arguments of a model and the targets, from what an encoder would read."""
        values = [one.values for one in examples if one.values is not None]
        if values:
            return {**inputs}, torch.stack(values)
        return {**inputs}, self.targets([one.targets for one in examples], padding)

    def targets(self, targets: Sequence[list[int]], padding: Padding) -> Shaped[Tensor, "..."]:
        """The targets of a batch."""
        rows = torch.tensor(targets)
        return rows[:, 0] if rows.ndim == 2 and rows.shape[1] == 1 else rows


ONE_EACH = Layout()
"""The layout of most tasks of whole inputs."""


class Apart(Layout):
    """One target for two texts, each of which is read by itself."""

    def lengths_of(self, examples: Sequence[Encoded]) -> list[int]:
        """The length of the longer text of each."""
        return [max(map(len, texts_of(example))) for example in examples]

    def rows(self, example: Encoded) -> Sequence[list[int]]:
        """The two texts."""
        return texts_of(example)

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """Each text cut to `max_len` positions."""
        return shortened_apart(example, max_len, special)


class PerToken(Layout):
    """A target for every token that is read, or -100: tags."""

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """Tokens and targets cut alike."""
        targets = keep_special(example.targets, max_len, special)
        return replace(super().shortened(example, max_len, special), targets=targets)

    def targets(self, targets: Sequence[list[int]], padding: Padding) -> Shaped[Tensor, "..."]:
        """`[batch, seq]`."""
        return padded(tensors(targets), IGNORE, padding.width(max(map(len, targets))))


class NextToken(PerToken):
    """The token after every token that is read: of a plain text all, of a conversation answers."""

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """The first tokens and targets; an end that was cut off is not learnt."""
        cut = (example.tokens[:max_len], example.targets[:max_len])
        return replace(example, tokens=cut[0], targets=cut[1])

    def arranged(
        self, inputs: Mapping[str, Tensor], examples: Sequence[Encoded], padding: Padding
    ) -> Arranged:
        """As `Layout`; a decoder calls what it reads `tokens`."""
        read, targets = super().arranged(inputs, examples, padding)
        return {"tokens" if name == "inputs" else name: x for name, x in read.items()}, targets


class TargetSequence(Layout):
    """A sequence of its own length, which no decoder reads: a transcript that is aligned (CTC)."""

    def lengths(self, read: Ids, targets: Ids) -> Ids:
        """The longer side."""
        return np.maximum(read, targets)

    def shortened(self, example: Encoded, max_len: int, special: tuple[int, int]) -> Encoded:
        """Both sides cut, what is read without its special tokens."""
        read = keep_special(example.tokens, max_len, special)
        return replace(example, tokens=read, targets=example.targets[:max_len])

    def targets(self, targets: Sequence[list[int]], padding: Padding) -> Shaped[Tensor, "..."]:
        """`[batch, target_seq]`, -100 after the end of each."""
        return padded(tensors(targets), IGNORE, padding.width(max(map(len, targets))))


class SourceAndTarget(TargetSequence):
    """A sequence of its own length, which a decoder reads shifted after the start token."""

    def arranged(
        self, inputs: Mapping[str, Tensor], examples: Sequence[Encoded], padding: Padding
    ) -> Arranged:
        """What is read is the source; the target is read one place later, after bos."""
        rows = [one.targets for one in examples]
        shifted = tensors([[padding.bos_id, *row[:-1]] for row in rows])
        width = padding.width(max(map(len, rows)))
        target = with_valid("target", "target_valid", shifted, padding.pad_id, width)
        source = {SOURCE[name]: tensor for name, tensor in inputs.items() if name in SOURCE}
        return {**source, **target}, self.targets(rows, padding)


class SeriesWindows(Layout):
    """Every step of a horizon: each window of a series has them."""

    def have_targets(self, examples: Sequence[Encoded]) -> Sequence[bool]:
        """Always."""
        return [True] * len(examples)
