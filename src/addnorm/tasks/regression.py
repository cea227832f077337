"""Regression: one or more numbers for a text or a series."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch
from addnorm.data.examples import Scored, ScoredSeries
from addnorm.data.ids.compact import Encoded
from addnorm.metrics import scores as metrics
from addnorm.models import Model
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Valid
from addnorm.tasks.whole_inputs import OfWholeInputs


class Regression(OfWholeInputs):
    """One or more numbers, fitted by least squares."""

    name = "regression"
    model = "model.head = { kind = 'classification', problem = 'regression' }"
    metrics = ("mse", "r2", "pearson", "spearman", "loss")
    call = "run.predict(texts)"
    endpoint = "/classify"
    page = "numbers"
    examples = (Scored, ScoredSeries)

    def with_target(self, read: Encoded, example: Any, numbers: Mapping[str, int]) -> Encoded:
        """Return the input with its numbers as target."""
        return replace(read, values=torch.tensor(example.target_numbers()))

    def answers(
        self, head: nn.Module, logits: Float[Tensor, "batch numbers"], batch: Batch, valid: Valid
    ) -> Mapping[int, list[float]]:
        """The numbers of each example."""
        return dict(zip(batch.indices, logits.tolist(), strict=True))

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """The mean squared error, R² and both correlations."""
        answers: dict[int, list[float]] = outputs.answers
        gold = [split.examples[i].target_numbers() for i in answers]
        numbers = list(answers.values())
        errors = dict(zip(answers, metrics.squared_errors(numbers, gold), strict=True))
        predictions = {i: numbers_line(row) for i, row in answers.items()}
        scores = metrics.number_scores(numbers, gold)
        return Evaluation(scores, predictions, values={"mse": errors})


def numbers_line(numbers: Iterable[float]) -> str:
    """Format numbers as a comma-separated line with six significant digits."""
    return ",".join(f"{number:.6g}" for number in numbers)
