"""What the outputs of a model say of each example: classes, labels, numbers or tags."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch
from addnorm.data.ids.encoding import IGNORE
from addnorm.nn.crf import CRFHead, best_tags

FEW = 5
"""Among how many of the best classes the right one is looked for, where there are more."""


def numbers_line(numbers: Iterable[float]) -> str:
    """Format numbers as a comma-separated line with six significant digits."""
    return ",".join(f"{one:.6g}" for one in numbers)


def answers(head: nn.Module, logits: Float[Tensor, "..."], batch: Batch) -> dict[int, list[Any]]:
    """By example: its best classes, whether each label is present, its numbers, or its tags."""
    targets = batch.targets
    if targets.dtype != torch.long:
        answers = logits > 0 if targets.dtype == torch.bool else logits
        return dict(zip(batch.indices, answers.tolist(), strict=True))
    if targets.ndim == 1:  # one label per text: the best five
        best = logits.topk(min(FEW, logits.shape[-1]), -1).indices
        return dict(zip(batch.indices, best.tolist(), strict=True))
    return dict(zip(batch.indices, tags_of(head, logits, targets != IGNORE), strict=True))


def tags_of(
    head: nn.Module, logits: Float[Tensor, "batch seq tags"], words: Bool[Tensor, "batch seq"]
) -> list[list[int]]:
    """The tags of the tokens that stand for words: of each the best, or by a CRF the best path."""
    if isinstance(head, CRFHead):
        return best_tags(head.chain, logits, words)
    return [row[of].tolist() for row, of in zip(logits.argmax(-1), words, strict=True)]


def tags_at(
    head: nn.Module, logits: Float[Tensor, "batch seq tags"], places: Sequence[Sequence[int]]
) -> list[list[int]]:
    """The tags of the words at these places of each text (see `tags_of`)."""
    words = torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
    for row, of in zip(words, places, strict=True):
        row[list(of)] = True
    return tags_of(head, logits, words)


def filled(tags: list[str], n: int) -> list[str]:
    """Pad the tags with "O": words cut off from a too long sentence count as outside any entity."""
    return tags + ["O"] * (n - len(tags))
