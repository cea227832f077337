"""What the outputs of a model say of each example: classes, labels, numbers or tags."""

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.data.batch import Batch
from addnorm.data.encoding import IGNORE

FEW = 5
"""Among how many of the best classes the right one is looked for, where there are more."""


def numbers_line(numbers: Iterable[float]) -> str:
    """Format numbers as a comma-separated line with six significant digits."""
    return ",".join(f"{one:.6g}" for one in numbers)


def answers(logits: Float[Tensor, "..."], batch: Batch) -> dict[int, list[Any]]:
    """By example: its best classes, whether each label is present, its numbers, or its tags."""
    best, targets = logits.argmax(-1), batch.targets
    if targets.dtype != torch.long:
        answers = logits > 0 if targets.dtype == torch.bool else logits
        return dict(zip(batch.indices, answers.tolist(), strict=True))
    if targets.ndim == 1:  # one label per text: the best five
        best = logits.topk(min(FEW, logits.shape[-1]), -1).indices
        return dict(zip(batch.indices, best.tolist(), strict=True))
    return {
        index: row[counted].tolist()
        for index, row, counted in zip(batch.indices, best, targets != IGNORE, strict=True)
    }


def filled(tags: list[str], n: int) -> list[str]:
    """Pad the tags with "O": words cut off from a too long sentence count as outside any entity."""
    return tags + ["O"] * (n - len(tags))
