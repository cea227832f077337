"""Tagging: a tag for each word of a sentence, by itself or along a chain (CRF)."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch
from addnorm.data.examples import labels_of, words_of
from addnorm.data.ids.encoding import IGNORE
from addnorm.metrics import scores as metrics
from addnorm.models import Model
from addnorm.nn.crf import CRFHead, best_tags
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task


class Tagging(Task):
    """`p(tag | sentence)` at the first piece of each word, or of all tags by a CRF."""

    name = "tagging"
    model = "model.kind = 'encoder' with model.head.kind = 'tagging'"
    metrics = ("f1", "surface_f1", "accuracy", "loss")
    command = "addnorm classify"
    labels = True
    exits_early = True

    def answers(
        self, head: nn.Module, logits: Float[Tensor, "batch seq tags"], batch: Batch
    ) -> Mapping[int, list[int]]:
        """The tag of each word."""
        tags = tags_of(head, logits, batch.targets != IGNORE)
        return dict(zip(batch.indices, tags, strict=True))

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """F1 over entities and over their surface forms, and the accuracy of words."""
        answers: dict[int, list[int]] = outputs.answers
        gold = {i: labels_of(split.examples[i]) for i in answers}
        tags = {
            i: filled([split.labels[label] for label in best], len(gold[i]))
            for i, best in answers.items()
        }
        sides = list(tags.values()), list(gold.values())
        scores = metrics.entity_scores(*sides)
        scores |= metrics.surface_scores(*sides, [words_of(split.examples[i]) for i in tags])
        flat = ([tag for sentence in side for tag in sentence] for side in sides)
        scores["accuracy"] = metrics.accuracy(*flat)
        return Evaluation(scores, {i: " ".join(sentence) for i, sentence in tags.items()})


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
