"""Tagging: a tag for each word of a sentence, by itself or along a chain (CRF)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from addnorm.data import Corpus
from addnorm.data.batches.batch import Batch
from addnorm.data.examples import Tagged
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import IGNORE, numbers_of
from addnorm.data.ids.framing import encode_words
from addnorm.data.ids.layout import PerToken
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.metrics import scores as metrics
from addnorm.metrics.scores import measured_by
from addnorm.models import Model
from addnorm.nn.crf import CRFHead, best_tags
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task, Valid


class Tagging(Task):
    """`p(tag | sentence)` at the first piece of each word, or of all tags by a CRF."""

    name = "tagging"
    model = "model.kind = 'encoder' with model.head.kind = 'tagging'"
    metrics = ("f1", "surface_f1", "accuracy", "loss")
    call = "run.tag(sentences)"
    endpoint = "/tag"
    page = "tags"
    target_unit = "tokens"
    examples = (Tagged,)
    layout = PerToken()
    labels = True
    classes = True
    exits_early = True

    def check_packages(self, corpus: Corpus, settings: EvalConfig) -> None:
        """Check that `seqeval`, which finds entities, is installed."""
        metrics.entity_scores([["O"]], [["O"]])

    def encode(
        self, examples: Sequence[Any], tokenizers: Tokenizers | None, numbers: Mapping[str, int]
    ) -> Iterator[Encoded]:
        """Encode the words of sentences as pieces, with the tag at each word's first piece."""
        assert tokenizers is not None
        for i, example in enumerate(examples):
            tokens, first = encode_words(tokenizers.source, example.words())
            targets = [IGNORE] * len(tokens)
            for place, tag in zip(first, numbers_of(example.target_labels(), numbers), strict=True):
                targets[place] = tag
            yield Encoded(i, tokens, targets)

    def measured_with(self, metric: str, settings: EvalConfig) -> str:
        """How entities are found and compared."""
        if metric == "accuracy":
            return "words"
        if metric in ("f1", "precision", "recall"):
            how = "entities by type and span, as conlleval, micro-averaged"
            return measured_by("seqeval", how)
        if metric.startswith("surface_"):
            return measured_by("seqeval", "unique surface forms of entities; case counts")
        return ""

    def answers(
        self, head: nn.Module, logits: Float[Tensor, "batch seq tags"], batch: Batch, valid: Valid
    ) -> Mapping[int, list[int]]:
        """The tag of each word."""
        tags = tags_of(head, logits, batch.targets != IGNORE)
        return dict(zip(batch.indices, tags, strict=True))

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """F1 over entities and over their surface forms, and the accuracy of words."""
        answers: dict[int, list[int]] = outputs.answers
        gold = {i: split.examples[i].target_labels() for i in answers}
        tags = {
            i: filled([split.labels[label] for label in best], len(gold[i]))
            for i, best in answers.items()
        }
        sides = list(tags.values()), list(gold.values())
        scores = metrics.entity_scores(*sides)
        scores |= metrics.surface_scores(*sides, [split.examples[i].words() for i in tags])
        flat = ([tag for sentence in side for tag in sentence] for side in sides)
        scores["accuracy"] = metrics.accuracy(*flat)
        return Evaluation(scores, {i: " ".join(sentence) for i, sentence in tags.items()})


def tags_of(
    head: nn.Module, logits: Float[Tensor, "batch seq tags"], words: Bool[Tensor, "batch seq"]
) -> list[list[int]]:
    """Return the best tag of each token that begins a word; for a CRF, those of the best path."""
    if isinstance(head, CRFHead):
        return best_tags(head.chain, logits, words)
    return [row[of].tolist() for row, of in zip(logits.argmax(-1), words, strict=True)]


def tags_at(
    head: nn.Module, logits: Float[Tensor, "batch seq tags"], places: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Return the tags of the words at these positions of each text (see `tags_of`)."""
    words = torch.zeros(logits.shape[:2], dtype=torch.bool, device=logits.device)
    for row, of in zip(words, places, strict=True):
        row[list(of)] = True
    return tags_of(head, logits, words)


def filled(tags: list[str], n: int) -> list[str]:
    """Pad the tags with "O" for words that were cut off a long sentence."""
    return tags + ["O"] * (n - len(tags))
