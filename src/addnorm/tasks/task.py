"""The protocol of a task: what it learns from, how its predictions are made, scored and named."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.data.batches.batch import Batch, Loader
from addnorm.data.examples import Example
from addnorm.data.examples import Task as TaskName
from addnorm.data.ids.compact import Encoded
from addnorm.data.scaling import Scaling
from addnorm.data.tokenizing.pieces import Ids
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.models import Model
from addnorm.tasks.eval_config import EvalConfig, MetricName
from addnorm.training.loss import labels_loss_sum


@dataclass(frozen=True)
class Evaluation:
    """The scores by name, and the predictions by the index of the example in the split.

    `batches` has the summed loss of each batch, and its number of targets.
    """

    scores: dict[str, float]
    predictions: dict[int, str] = field(default_factory=dict[int, str])
    batches: tuple[tuple[float, int], ...] = ()
    gold: Mapping[int, str] = field(default_factory=dict[int, str])
    """The right classes of what was classified."""
    details: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scores that are of interest after training alone."""
    values: Mapping[str, Mapping[int, float]] = field(
        default_factory=dict[str, Mapping[int, float]]
    )
    """Of a score that is a mean over examples, the value of each by its index."""
    measured_with: Mapping[str, str] = field(default_factory=dict[str, str])
    """What a score was measured with, by its name (see `runs.measured_with`)."""


@runtime_checkable
class EvaluationSplit(Protocol):
    """A split to evaluate on: those of its examples that its loader has.

    Of the texts of a language model only the numbers of their `characters` are needed.
    """

    @property
    def examples(self) -> Sequence[Example]: ...
    @property
    def encoded(self) -> Sequence[Encoded]: ...
    @property
    def characters(self) -> Ids | None: ...
    @property
    def loader(self) -> Loader[Any]: ...
    @property
    def tokenizers(self) -> Tokenizers | None: ...
    @property
    def labels(self) -> Sequence[str]: ...
    @property
    def settings(self) -> EvalConfig: ...
    @property
    def scaling(self) -> Scaling | None: ...

    def logits(self, model: Model, batch: Batch) -> Tensor:
        """The outputs of a model for a batch, at an early exit where one was asked for."""
        ...


@dataclass(frozen=True)
class Outputs:
    """What a model gave on a split: the loss of each batch, and what was read from its outputs."""

    batches: tuple[tuple[float, int], ...]
    answers: dict[int, Any]
    """Of each example by its index, what the task reads from the outputs (see `Task.answers`)."""
    correct: int
    """How many targets were met, where a task counts them (see `Task.correct`)."""

    @property
    def total_loss(self) -> float:
        """The loss summed over all targets, in nats or squared units."""
        return sum(summed for summed, _ in self.batches)

    @property
    def n_targets(self) -> int:
        return sum(n for _, n in self.batches)

    @property
    def loss(self) -> float:
        """The mean loss of a target."""
        return self.total_loss / max(self.n_targets, 1)


class Task(ABC):
    """What a model is for: a value that training, evaluation, use and messages ask.

    A subclass says what is true of its task; `addnorm.tasks.registry.TASKS` lists those of AddNorm.
    """

    name: ClassVar[TaskName]
    """The word for it in messages, files and `Run.task`."""
    model: ClassVar[str]
    """The setting of a recipe by which a model is for this task."""
    metrics: ClassVar[tuple[MetricName, ...]]
    """What can select the best weights; the first is the default."""
    command: ClassVar[str]
    """The command that uses such a model on new data."""
    target_unit: ClassVar[str] = "tokens"
    """What the targets are: the unit of the speed of training."""
    learns_from: ClassVar[TaskName | None] = None
    """The task of the data where it is another: plain texts of which parts are hidden."""
    labels: ClassVar[bool] = False
    """Whether the outputs stand for labels, numbers or variables of the data."""
    classes: ClassVar[bool] = True
    """Whether each target is one of several classes, so that labels can be smoothed."""
    plain_texts: ClassVar[bool] = False
    """Whether the data are texts without labels."""
    exits_early: ClassVar[bool] = False
    """Whether its outputs are probabilities, by which an early exit is taken."""

    def answers(
        self, head: nn.Module, logits: Float[Tensor, "..."], batch: Batch
    ) -> Mapping[int, Any]:
        """What is read from the outputs for each example, by its index; nothing by default."""
        return {}

    def correct(self, logits: Float[Tensor, "..."], batch: Batch) -> int:
        """How many targets have the highest probability, where the task counts them here."""
        return 0

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """The scores of outputs besides the loss, and the predictions.

        A task whose texts are written writes the first `n_written`, by default all.
        """
        return Evaluation({})

    def evaluate(self, model: Model, split: EvaluationSplit, n_written: int | None) -> Evaluation:
        """Run the model on a split and score what it gives."""
        with torch.inference_mode():
            outputs = self._outputs(model, split)
        evaluation = self.score(outputs, split, model, n_written)
        scores = {"loss": outputs.loss, **evaluation.scores}
        return replace(evaluation, scores=scores, batches=outputs.batches)

    def _outputs(self, model: Model, split: EvaluationSplit) -> Outputs:
        device = next(model.parameters()).device
        batches: list[tuple[float, int]] = []
        answers: dict[int, Any] = {}
        correct = 0
        for batch in split.loader.batches():
            batch = batch.to(device)
            logits = split.logits(model, batch)
            loss = labels_loss_sum(model.head, logits, batch.targets).item()
            batches.append((loss, batch.n_tokens))
            answers.update(self.answers(model.head, logits, batch))
            correct += self.correct(logits, batch)
        return Outputs(tuple(batches), dict(sorted(answers.items())), correct)
