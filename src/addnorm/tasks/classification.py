"""Classification: one class for a text, an image, a clip or a series."""

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch
from addnorm.data.examples import labels_of
from addnorm.metrics import scores as metrics
from addnorm.models import Model
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task

FEW = 5
"""Among how many of the best classes the right one is looked for, where there are more."""


class Classification(Task):
    """`p(class | example)` of an encoder."""

    name = "classification"
    model = "model.kind = 'encoder' with model.head.kind = 'classification'"
    metrics = ("accuracy", "f1", "loss")
    command = "addnorm classify"
    target_unit = "examples"
    labels = True
    exits_early = True

    def answers(
        self, head: nn.Module, logits: Float[Tensor, "batch classes"], batch: Batch
    ) -> Mapping[int, list[int]]:
        """The best five classes of each example, the most probable first."""
        best = logits.topk(min(FEW, logits.shape[-1]), -1).indices
        return dict(zip(batch.indices, best.tolist(), strict=True))

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """Accuracy and macro F1; where there are more than five classes, the top five as well."""
        answers: dict[int, list[int]] = outputs.answers
        predictions = {i: split.labels[best] for i, [best, *_] in answers.items()}
        gold = {i: label for i in predictions for label in labels_of(split.examples[i])}
        both = list(predictions.values()), list(gold.values())
        scores = {"accuracy": metrics.accuracy(*both), "f1": metrics.macro_f1(*both)}
        if len(split.labels) > FEW:
            near = [gold[i] in {split.labels[n] for n in best} for i, best in answers.items()]
            scores["top_5"] = 100 * sum(near) / max(len(near), 1)
        right = {i: 100.0 * (gold[i] == label) for i, label in predictions.items()}
        return Evaluation(scores, predictions, gold=gold, values={"accuracy": right})
