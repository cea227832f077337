"""Judging a model by its task's own metric, while it trains and afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from addnorm.data.batch import Batch, Loader
from addnorm.data.encoding import IGNORE, Encoded, Tokenizers, encode
from addnorm.data.examples import Example, Labelled, Pair, Tagged, Task, Text
from addnorm.errors import InputError
from addnorm.generate import Writer, translate
from addnorm.models import EncoderDecoderModel, Model
from addnorm.runs import metrics
from addnorm.runs.folder import Run
from addnorm.runs.settings import EvalConfig
from addnorm.train.loss import cross_entropy_sum

METRICS: dict[Task, str] = {
    "language": "loss",
    "translation": "loss",
    "classification": "accuracy",
    "tagging": "f1",
}
"""What picks the best weights unless `eval.metric` says otherwise."""


@dataclass(frozen=True)
class Judged:
    """The figures by name, and what the model said for each example, as text."""

    scores: dict[str, float]
    said: list[str]


@dataclass(frozen=True)
class Judge:
    """Judges models of one task on one split of a corpus."""

    task: Task
    examples: Sequence[Example]
    encoded: Sequence[Encoded]
    loader: Loader[Any]
    tokenizers: Tokenizers
    labels: Sequence[str]
    settings: EvalConfig

    def judge(self, model: Model, n_translated: int | None = None) -> Judged:
        """Score the split; of translations, only the first `n_translated` where that is given."""
        model.eval()
        with torch.inference_mode():
            loss, n_tokens, outputs = self._run(model)
        scores = {"loss": loss / max(n_tokens, 1)}
        match self.task:
            case "language":
                return Judged(scores | self._language(loss, scores["loss"]), [])
            case "translation":
                return self._translation(model, scores, n_translated)
            case "classification":
                return self._classification(scores, outputs)
            case "tagging":
                return self._tagging(scores, outputs)

    def _run(self, model: Model) -> tuple[float, int, dict[int, list[int]]]:
        """The summed loss, its number of targets, and the best label at each target by example."""
        device = next(model.parameters()).device
        total, n_tokens = 0.0, 0
        outputs: dict[int, list[int]] = {}
        for batch in self.loader.batches():
            batch = batch.to(device)
            logits = model(**batch.inputs)
            total += cross_entropy_sum(logits, batch.targets).item()
            n_tokens += batch.n_tokens
            if self.labels:
                outputs.update(_best_labels(logits, batch))
        return total, n_tokens, outputs

    def _language(self, total: float, loss: float) -> dict[str, float]:
        n_characters = sum(len(e.text) for e in self.examples if isinstance(e, Text))
        return {
            "perplexity": metrics.perplexity(loss),
            "bits_per_character": metrics.bits_per_character(total, n_characters),
        }

    def _translation(
        self, model: Model, scores: dict[str, float], n_translated: int | None
    ) -> Judged:
        scores["perplexity"] = metrics.perplexity(scores["loss"])
        chosen = self.encoded[:n_translated]
        if not chosen:
            return Judged(scores, [])
        assert isinstance(model, EncoderDecoderModel)
        found = translate(
            model,
            [one.tokens for one in chosen],
            self.settings.decoding,
            writer=Writer(self.tokenizers.target),
            batch_size=self.settings.batch_size,
        )
        said = [best[0].text for best in found]
        pairs = [self.examples[one.index] for one in chosen]
        references = [pair.target for pair in pairs if isinstance(pair, Pair)]
        scores |= metrics.translation_scores(said, references, self.settings.bleu_tokenize)
        return Judged(scores, said)

    def _classification(self, scores: dict[str, float], outputs: dict[int, list[int]]) -> Judged:
        order = sorted(outputs)
        predicted = [outputs[i][0] for i in order]
        examples = [self.examples[i] for i in order]
        gold = [self.labels.index(e.label) for e in examples if isinstance(e, Labelled)]
        scores |= {
            "accuracy": metrics.accuracy(predicted, gold),
            "f1": metrics.macro_f1(predicted, gold),
        }
        return Judged(scores, [self.labels[label] for label in predicted])

    def _tagging(self, scores: dict[str, float], outputs: dict[int, list[int]]) -> Judged:
        order = sorted(outputs)
        gold = [e.tags for e in (self.examples[i] for i in order) if isinstance(e, Tagged)]
        predicted = [
            _filled([self.labels[label] for label in outputs[i]], len(tags))
            for i, tags in zip(order, gold, strict=True)
        ]
        scores |= metrics.entity_scores(predicted, gold)
        return Judged(scores, [" ".join(tags) for tags in predicted])


def _best_labels(logits: Tensor, batch: Batch) -> dict[int, list[int]]:
    best, targets = logits.argmax(-1), batch.targets
    if targets.ndim == 1:  # one label for the whole text
        best, targets = best[:, None], targets[:, None]
    return {
        index: row[counted].tolist()
        for index, row, counted in zip(batch.indices, best, targets != IGNORE, strict=True)
    }


def _filled(tags: list[str], n: int) -> list[str]:
    """Words cut off with a sentence that was too long count as outside any entity."""
    return tags + ["O"] * (n - len(tags))


def evaluate_run(
    run: Run, split: Literal["valid", "test"], predictions: Path | None = None
) -> dict[str, float]:
    """The scores of a run on a split of its data; what the model said goes to `predictions`.

    Raises `InputError` where the data have no such split.
    """
    corpus = run.recipe.data.load()
    encoded = encode(corpus, run.tokenizers, run.labels)
    loaders = run.recipe.train.batching.build(encoded)
    loader = loaders.valid if split == "valid" else loaders.test
    if loader is None:
        raise InputError(f"the data have no {split} split: data.{split} is not given")
    judge = Judge(
        corpus.task,
        corpus.splits[split],
        encoded.splits[split],
        loader,
        run.tokenizers,
        run.labels,
        run.recipe.eval,
    )
    judged = judge.judge(run.model)
    if predictions is not None:
        predictions.write_text("".join(f"{line}\n" for line in judged.said), encoding="utf-8")
    return {"examples": len(corpus.splits[split]), **judged.scores}
