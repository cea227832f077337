"""The contrastive task: which text belongs to which picture, by the cosines of their vectors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from addnorm.data import Captioned
from addnorm.data.example import signal_digest
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.framing import in_groups
from addnorm.data.ids.layout import PicturesAndTexts
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.metrics.scores import recalls
from addnorm.models import DualEncoderModel, Model
from addnorm.tasks.task import Evaluation, EvaluationSplit, Task

BEST = (1, 5, 10)
"""The numbers of best candidates among which retrieval looks for the right one."""


class Contrastive(Task):
    """Pairs of a picture and a text (Radford et al. 2021, CLIP; Zhai et al. 2023, SigLIP).

    The loss of a pair is among those of its batch. Retrieval is among all of a split: `recall_1` is
    how often the best candidate is right, the mean of both directions; `text_recall_1` finds the
    text of a picture, `image_recall_1` the picture of a text. Equal texts count as one candidate,
    and so do equal pictures.
    """

    name = "contrastive"
    model = "model.kind = 'dual_encoder'"
    call = "run.embed(texts)"
    endpoint = "/v1/embeddings"
    target_unit = "pairs"
    examples = (Captioned,)
    layout = PicturesAndTexts()
    metrics = ("recall_1", "recall_5", "recall_10", "loss")

    def encode(
        self, examples: Sequence[Any], tokenizers: Tokenizers | None, numbers: Mapping[str, int]
    ) -> Iterator[Encoded]:
        """The pixels of each picture, and its text as ids with their special tokens."""
        assert tokenizers is not None
        texts = [example.target_text() for example in examples]
        rows = in_groups("classification", tokenizers.source, texts)
        for i, (example, ids) in enumerate(zip(examples, rows, strict=True)):
            yield Encoded(i, ids, [i], example.signal())

    def evaluate(self, model: Model, split: EvaluationSplit, n_written: int | None) -> Evaluation:
        """The loss over the batches, and retrieval scores in both directions over the split."""
        assert isinstance(model, DualEncoderModel)
        indices, batches = list[int](), list[tuple[float, int]]()
        pictures, texts = list[Tensor](), list[Tensor]()
        with torch.inference_mode():
            for batch in split.loader.batches():
                inputs = dict(batch.to(next(model.parameters()).device).inputs)
                pictures.append(model.image_vectors(inputs.pop("images")))
                texts.append(model.text_vectors(**inputs))
                logits = model.head(pictures[-1], texts[-1])
                targets = torch.arange(len(logits), device=logits.device)
                batches.append((model.head.loss_sum(logits, targets).item(), batch.n_tokens))
                indices += batch.indices
            examples = [split.examples[i] for i in indices]
            u, picture_of = _distinct(torch.cat(pictures), [*map(signal_digest, examples)])
            v, text_of = _distinct(torch.cat(texts), [x.target_text() for x in examples])
            pairs = torch.zeros(len(u), len(v), dtype=torch.bool, device=u.device)
            pairs[picture_of, text_of] = True
            similarity = u @ v.T
            best = similarity.argmax(1)[picture_of].tolist()
        names = {number: x.target_text() for number, x in zip(text_of, examples, strict=True)}
        predictions = {i: names[text] for i, text in zip(indices, best, strict=True)}
        return _scored(similarity, pairs, tuple(batches), predictions)


def _distinct(vectors: Float[Tensor, "n width"], keys: Sequence[str]) -> tuple[Tensor, list[int]]:
    """The vector of each distinct key, and for each row the number of its key."""
    numbers: dict[str, int] = {}
    of_row = [numbers.setdefault(key, len(numbers)) for key in keys]
    first = [of_row.index(number) for number in range(len(numbers))]
    return vectors[first], of_row


def _scored(
    similarity: Float[Tensor, "pictures texts"],
    pairs: Bool[Tensor, "pictures texts"],
    batches: tuple[tuple[float, int], ...],
    predictions: Mapping[int, str],
) -> Evaluation:
    of_texts, of_pictures = recalls(similarity, pairs, BEST), recalls(similarity.T, pairs.T, BEST)
    scores = {"loss": sum(loss for loss, _ in batches) / max(sum(n for _, n in batches), 1)}
    details: dict[str, float] = {}
    for k, text, picture in zip(BEST, of_texts, of_pictures, strict=True):
        scores[f"recall_{k}"] = (text + picture) / 2
        details |= {f"text_recall_{k}": text, f"image_recall_{k}": picture}
    predictions = dict(sorted(predictions.items()))
    return replace(Evaluation(scores, predictions, batches), details=details)
