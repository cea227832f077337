"""Multi-label classification: any number of labels for a text."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import compress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch
from addnorm.data.examples import MultiLabelled
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import numbers_of
from addnorm.metrics import scores as metrics
from addnorm.models import Model
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Valid
from addnorm.tasks.whole_inputs import OfWholeInputs


class MultiLabel(OfWholeInputs):
    """`p(label | text)` for each label independently; labels above 0.5 are predicted."""

    name = "multi_label"
    model = "model.head = { kind = 'classification', problem = 'multi_label' }"
    metrics = ("f1_micro", "f1_macro", "exact", "loss")
    call = "run.classify(texts)"
    endpoint = "/classify"
    page = "labels"
    examples = (MultiLabelled,)

    def with_target(self, read: Encoded, example: Any, numbers: Mapping[str, int]) -> Encoded:
        """Return the input with a boolean target for each label."""
        has = torch.zeros(len(numbers), dtype=torch.bool)
        has[numbers_of(example.target_labels(), numbers)] = True
        return replace(read, values=has)

    def measured_with(self, metric: str, settings: EvalConfig) -> str:
        """Return which labels a score counts, and the probability threshold."""
        above = "of a probability above 0.5"
        lines = {
            "exact": f"all labels, {above}",
            "f1_micro": f"labels {above}",
            "f1_macro": f"labels {above}, of those that occur",
        }
        return lines.get(metric, "")

    def answers(
        self, head: nn.Module, logits: Float[Tensor, "batch labels"], batch: Batch, valid: Valid
    ) -> Mapping[int, list[bool]]:
        """Whether each example has each label."""
        return dict(zip(batch.indices, (logits > 0).tolist(), strict=True))

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """Micro and macro F1, and the share of examples with all labels right."""
        answers: dict[int, list[bool]] = outputs.answers
        predicted = {i: list(compress(split.labels, row)) for i, row in answers.items()}
        gold = {i: split.examples[i].target_labels() for i in predicted}
        scores = metrics.label_scores(list(predicted.values()), list(gold.values()), split.labels)
        right = {i: 100.0 * ({*labels} == {*gold[i]}) for i, labels in predicted.items()}
        predictions = {i: ",".join(labels) for i, labels in predicted.items()}
        return Evaluation(scores, predictions, values={"exact": right})
