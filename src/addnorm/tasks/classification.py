"""Classification: one class for a text, an image, a clip or a series."""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from addnorm.data import Corpus
from addnorm.data.batches.batch import Batch
from addnorm.data.examples import Clip, Image, Labelled, LabelledSeries
from addnorm.data.ids.compact import Encoded
from addnorm.data.ids.encoding import numbers_of
from addnorm.metrics import scores as metrics
from addnorm.models import Model
from addnorm.tasks.eval_config import EvalConfig
from addnorm.tasks.task import Evaluation, EvaluationSplit, Outputs, Valid
from addnorm.tasks.whole_inputs import OfWholeInputs

FEW = 5
"""The number of best classes in which top-5 accuracy looks for the right one."""


class Classification(OfWholeInputs):
    """`p(class | example)` of an encoder."""

    name = "classification"
    model = "model.kind = 'encoder' with model.head.kind = 'classification'"
    metrics = ("accuracy", "f1", "loss")
    call = "run.classify(texts)"
    endpoint = "/classify"
    page = "classes"
    examples = (Labelled, Image, Clip, LabelledSeries)
    classes = True
    one_class = True
    exits_early = True

    def with_target(self, read: Encoded, example: Any, numbers: Mapping[str, int]) -> Encoded:
        """Return the input with its class number as target."""
        return read.with_targets(numbers_of(example.target_labels(), numbers))

    def measured_with(self, metric: str, settings: EvalConfig) -> str:
        """Return how F1 is averaged."""
        return "macro, over the classes that occur" if metric == "f1" else ""

    def warnings(self, corpus: Corpus, label: str | None) -> Iterator[str]:
        """Warn of a single label for all texts, of labels that hardly repeat, and of numbers."""
        if isinstance(corpus.train[0], Labelled):
            counts = Counter(
                example.label for example in corpus.train if isinstance(example, Labelled)
            )
            yield from _labels(counts)
            yield from _numbers(counts, label)

    def answers(
        self, head: nn.Module, logits: Float[Tensor, "batch classes"], batch: Batch, valid: Valid
    ) -> Mapping[int, list[int]]:
        """Return the five best classes of each example, the most probable first."""
        best = logits.topk(min(FEW, logits.shape[-1]), -1).indices
        return dict(zip(batch.indices, best.tolist(), strict=True))

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """Return accuracy and macro F1; for more than five classes, top-5 accuracy as well."""
        answers: dict[int, list[int]] = outputs.answers
        predictions = {i: split.labels[best] for i, [best, *_] in answers.items()}
        gold = {i: label for i in predictions for label in split.examples[i].target_labels()}
        sides = list(predictions.values()), list(gold.values())
        scores = {"accuracy": metrics.accuracy(*sides), "f1": metrics.macro_f1(*sides)}
        if len(split.labels) > FEW:
            near = [gold[i] in {split.labels[n] for n in best} for i, best in answers.items()]
            scores["top_5"] = 100 * sum(near) / max(len(near), 1)
        right = {i: 100.0 * (gold[i] == label) for i, label in predictions.items()}
        return Evaluation(scores, predictions, gold=gold, values={"accuracy": right})


def _labels(counts: "Counter[str]") -> Iterator[str]:
    """Warn of a single label for all texts, or of labels that hardly repeat."""
    if len(counts) == 1:
        yield f"all training texts have the label {next(iter(counts))!r}: there is nothing to learn"
    elif len(words := [label for label in counts if _number(label) is None]) > 20 and (
        counts.total() < 2 * len(counts)
    ):
        yield (
            f"{counts.total():,} training texts have {len(counts):,} different labels, such as "
            f"{min(words, key=len)!r}: is the column of labels another one?"
        )


def _numbers(counts: "Counter[str]", column: str | None) -> Iterator[str]:
    """Warn of classes that look like measurements: fractions, or numbers that hardly repeat."""
    by_label = {label: number for label in counts if (number := _number(label)) is not None}
    numbers = list(by_label.values())
    if len(numbers) < 0.9 * len(counts):  # one in ten may be "unknown" or the like
        return
    broken = [number for number in numbers if number != int(number)]
    if broken or (len(counts) > 20 and counts.total() < 5 * len(counts)):
        where = f"the column {column!r} holds" if column else "the labels hold"
        yield (
            f"{where} {len(numbers):,} different numbers such as {next(iter(by_label))}, each as a "
            f"class: to predict a number, read it as values = {column or 'value'!r} of a table, "
            "with the head's problem = 'regression'"
        )


def _number(label: str) -> float | None:
    """Parse a label as a number, also with a decimal comma, a currency sign or a per cent sign."""
    try:
        number = float(label.strip("%$€£¥ ").replace(",", "."))
    except ValueError:
        return None
    return number if isfinite(number) else None
