"""Multi-label classification: any number of labels for a text."""

from collections.abc import Mapping
from itertools import compress

from jaxtyping import Float
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch
from addnorm.data.examples import labels_of
from addnorm.metrics import scores as metrics
from addnorm.models import Model
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Task


class MultiLabel(Task):
    """`p(label | text)` for each label by itself; one above 0.5 is predicted."""

    name = "multi_label"
    model = "model.head = { kind = 'classification', problem = 'multi_label' }"
    metrics = ("f1_micro", "f1_macro", "exact", "loss")
    command = "addnorm classify"
    target_unit = "examples"
    labels = True
    classes = False

    def answers(
        self, head: nn.Module, logits: Float[Tensor, "batch labels"], batch: Batch
    ) -> Mapping[int, list[bool]]:
        """Whether each example has each label."""
        return dict(zip(batch.indices, (logits > 0).tolist(), strict=True))

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """Micro and macro F1, and how often all labels are right."""
        answers: dict[int, list[bool]] = outputs.answers
        predicted = {i: list(compress(split.labels, row)) for i, row in answers.items()}
        gold = {i: labels_of(split.examples[i]) for i in predicted}
        scores = metrics.label_scores(list(predicted.values()), list(gold.values()), split.labels)
        right = {i: 100.0 * ({*labels} == {*gold[i]}) for i, labels in predicted.items()}
        predictions = {i: ",".join(labels) for i, labels in predicted.items()}
        return Evaluation(scores, predictions, values={"exact": right})
