"""The base class of tasks: their examples, targets, predictions, scores and names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, ClassVar, NoReturn, Protocol, runtime_checkable
from warnings import warn

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from addnorm.data import Corpus
from addnorm.data.batches.batch import Batch, Loader
from addnorm.data.batches.buckets import BatchingConfig
from addnorm.data.example import has_signals
from addnorm.data.examples import Example
from addnorm.data.ids.compact import Compact, Encoded
from addnorm.data.ids.encoding import EncodedCorpus
from addnorm.data.ids.framing import around
from addnorm.data.ids.layout import Layout
from addnorm.data.scaling import Scaling
from addnorm.data.tokenizing.pieces import Advance, Ids
from addnorm.data.tokenizing.sides import Tokenizers
from addnorm.errors import InputError, choices
from addnorm.models import Model, ModelConfig
from addnorm.models.encoder import valid_outputs
from addnorm.parts import is_ours
from addnorm.tasks.contract import check_answers, check_scores, checked, checked_encodings
from addnorm.tasks.eval_config import LOWER_IS_BETTER, EvalConfig
from addnorm.training.loss import labels_loss_sum

Valid = Bool[Tensor, "rows positions"] | None
"""Which positions of a model's outputs are real; None where all are."""


@dataclass(frozen=True)
class Evaluation:
    """The scores by name, and the predictions by the index of the example in the split.

    `batches` has the summed loss of each batch, and its number of targets.
    """

    scores: dict[str, float]
    predictions: dict[int, str] = field(default_factory=dict[int, str], repr=False)
    batches: tuple[tuple[float, int], ...] = field(default=(), repr=False)
    gold: Mapping[int, str] = field(default_factory=dict[int, str], repr=False)
    """The right class of each classified example."""
    details: Mapping[str, float] = field(default_factory=dict[str, float])
    """Scores that are of interest after training alone."""
    values: Mapping[str, Mapping[int, float]] = field(
        default_factory=dict[str, Mapping[int, float]], repr=False
    )
    """Of a score that is a mean over examples, the value of each by its index."""
    measured_with: Mapping[str, str] = field(default_factory=dict[str, str])
    """The settings of each score, by its name (see `runs.measured_with`)."""
    split: str = ""
    """The split of the data that was evaluated on."""


@runtime_checkable
class EvaluationSplit(Protocol):
    """The examples of a split that are evaluated: those that its loader holds.

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
        """Return the outputs of a model for a batch, at early exits if they are chosen."""
        ...


@dataclass(frozen=True)
class Outputs:
    """The outputs of a model on a split: the loss of each batch, and the predictions."""

    batches: tuple[tuple[float, int], ...]
    answers: Any
    """The prediction for each example by its index (see `Task.answers`), a mapping."""
    correct: int
    """The number of targets that were predicted, where a task counts them (see `Task.correct`)."""

    @property
    def total_loss(self) -> float:
        """The loss summed over all targets, in nats or squared units."""
        return sum(summed for summed, _ in self.batches)

    @property
    def n_targets(self) -> int:
        return sum(n for _, n in self.batches)

    @property
    def loss(self) -> float:
        """The mean loss per target."""
        return self.total_loss / max(self.n_targets, 1)


def undefined(task: "Task", names: Sequence[str]) -> InputError:
    """The error for a task class that lacks methods or attributes."""
    return InputError(
        f"the task {type(task).__name__} lacks {' and '.join(names)}: define "
        f"{'it' if len(names) == 1 else 'them'} (see `addnorm.tasks.task.Task`)"
    )


ANSWERS = "answers(), which predicts for each example"


class Unanswered(dict[int, Any]):
    """The answers of a task that defines none; reading them raises `InputError`."""

    def __init__(self, task: "Task") -> None:
        super().__init__()
        self.task = task

    def __missing__(self, index: int) -> NoReturn:
        raise undefined(self.task, [ANSWERS])

    def __iter__(self) -> NoReturn:
        raise undefined(self.task, [ANSWERS])

    keys = values = items = __iter__


class Task:
    """The purpose of a model: a value that training, evaluation, use and messages consult.

    A subclass defines its task; `addnorm.tasks.registry.TASKS` lists those of AddNorm. A custom
    task is named by the head of its models: `task = MyTask()` in its configuration.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "command" in vars(cls):
            warn("Task.command is now Task.call, such as 'run.predict(rows)'", FutureWarning, 2)

    # What it is called.

    name: ClassVar[str]
    """The word for it in messages, files and `Run.task`."""
    model: ClassVar[str] = "a head of this task"
    """The setting of a recipe by which a model is for this task."""
    call: ClassVar[str] = "run.predict(rows)"
    """The call that uses such a model on new data; commands show it as a command."""
    endpoint: ClassVar[str] = "/predict"
    """The path that answers for such a model where it is served."""
    page: ClassVar[str | None] = None
    """What a page of such a model shows (`export --to web`); None for nothing."""
    target_unit: ClassVar[str] = "examples"
    """The plural noun of targets, for the speed of training."""

    # What it learns from.

    examples: ClassVar[tuple[type[Example], ...]]
    """The kinds of examples that it learns from."""
    layout: ClassVar[Layout] = Layout()
    """How input and targets are cut and batched together."""
    batching: ClassVar[type | None] = None
    """The kind of batches that makes its targets by hiding text; None for other tasks."""
    plain_texts: ClassVar[bool] = False
    """Whether the data are texts without labels."""
    labels: ClassVar[bool] = False
    """Whether the outputs are for labels, numbers or variables of the data."""
    classes: ClassVar[bool] = False
    """Whether each target is one of several classes, so that labels can be smoothed."""

    one_class: ClassVar[bool] = False
    """Whether each example has one class, which may be taken for another."""

    # What its models do.

    writes_text: ClassVar[bool] = False
    """Whether its models write text."""
    decodes: ClassVar[bool] = False
    """Whether its models write by the settings of `eval.decoding`."""
    exits_early: ClassVar[bool] = False
    """Whether its outputs are probabilities, by which an early exit is taken."""
    predicts_lines: ClassVar[bool] = True
    """Whether an evaluation has a prediction as text for each example."""

    # What it is measured by.

    metrics: ClassVar[tuple[str, ...]] = ("loss",)
    """The metrics that can select the best weights; the first is the default."""
    lower_is_better: ClassVar[tuple[str, ...]] = LOWER_IS_BETTER
    """Those of its metrics of which the lower figure is the better."""
    written_metrics: ClassVar[tuple[str, ...]] = ()
    """The metrics of texts that a model writes by `eval.decoding`."""

    def lacks(self) -> list[str]:
        """The missing methods and attributes, without which models cannot be trained and scored."""
        kind = type(self)
        names = [name for name in ("name", "examples") if not hasattr(kind, name)]
        if kind.encode is Task.encode and kind.encode_corpus is Task.encode_corpus:
            names.append("encode()")
        if not self.metrics:
            return [*names, "metrics"]
        is_scored = kind.score is not Task.score or kind.evaluate is not Task.evaluate
        if self.metrics[0] != "loss" and not is_scored:
            names.append(f"score(), which gives {self.metrics[0]!r}")
        return names

    def for_model(self, model: ModelConfig) -> "Task":
        """Return the task with its settings from a model's configuration; by default self."""
        return self

    def with_batching(self, batching: BatchingConfig) -> "Task":
        """The task of a model that learns from these batches; by default the task itself."""
        return self

    def check_metric(self, metric: str | None) -> None:
        """Raise `InputError`, with the nearest name, for a metric that the task does not have."""
        if metric is not None and metric not in self.metrics:
            raise InputError(
                f"eval.metric = {metric!r} is not measured for {self.name}."
                f"{choices(metric, self.metrics)}"
            )

    def check_packages(self, corpus: Corpus, settings: EvalConfig) -> None:
        """Raise `InputError`, before the work, if a package is missing that the scores need."""

    def check_data(self, model: ModelConfig, corpus: Corpus, labels: Sequence[str]) -> None:
        """Raise `InputError` for data that do not fit the model; `labels` are its run's labels."""

    def encode(
        self,
        examples: Sequence[Any],
        tokenizers: Tokenizers | None,
        numbers: Mapping[str, int],
    ) -> Iterator[Encoded]:
        """Encode the examples, each with its index; `numbers` maps labels to class numbers.

        Examples to predict for have None in place of their targets, and no targets here.
        `addnorm.data.ids.encoding` has the tools, such as `encoded_inputs` and `numbers_of`.
        """
        raise undefined(self, ["encode()"])

    def encoded(
        self,
        examples: Sequence[Any],
        tokenizers: Tokenizers | None,
        numbers: Mapping[str, int],
    ) -> Iterator[Encoded]:
        """Encode the examples as `encode` does, and return every one in their order.

        Raises `InputError` where that of a custom task gives anything else.
        """
        encodings = self.encode(examples, tokenizers, numbers)
        if is_ours(type(self)):
            return encodings
        reads_text = tokenizers is not None and not (examples and has_signals(examples[0].medium))
        vocab_size = tokenizers.source.vocab_size if tokenizers and reads_text else None
        return checked_encodings(self, encodings, len(examples), self.layout, vocab_size)

    @property
    def encodes_itself(self) -> bool:
        """Whether a custom `encode` reads the examples, so that texts alone are not read."""
        return not is_ours(type(self).encode)

    def check_reads_texts(self, name: str) -> None:
        """Raise `InputError` if the model with this `name` reads examples by a custom `encode`."""
        if self.encodes_itself:
            raise InputError(
                f"{name}: {type(self).__name__}.encode() reads examples in its own way, and not "
                "texts: use `run.predict(rows)`"
            )

    def encode_split(
        self,
        examples: Sequence[Any],
        tokenizers: Tokenizers | None,
        numbers: Mapping[str, int],
    ) -> Sequence[Encoded]:
        """Encode the examples of a split (see `encode`)."""
        signals = bool(examples) and has_signals(examples[0].medium)
        encoded = self.encoded(examples, tokenizers, numbers)
        return list(encoded) if signals else Compact.of(encoded)

    def encode_corpus(
        self,
        corpus: Corpus,
        tokenizers: Tokenizers | None,
        numbers: Mapping[str, int],
        advance: Advance,
    ) -> EncodedCorpus:
        """Encode all three splits (see `encode`); `advance` receives the encoded characters."""
        facts: Any = {"bos_id": 0, "pad_id": 0}
        if tokenizers is not None:
            facts = {"bos_id": tokenizers.target.bos_id, "pad_id": tokenizers.target.pad_id}
        if not has_signals(corpus.medium):
            assert tokenizers is not None
            before, after = around(self.name, tokenizers.source)
            facts["special"] = (len(before), len(after))
        for split, examples in corpus.splits.items():
            facts[split] = self.encode_split(examples, tokenizers, numbers)
        return EncodedCorpus(
            self.name,
            **facts,
            reports=corpus.reports,
            places=corpus.places,
            medium=corpus.medium,
            n_labels=len(numbers) if has_signals(corpus.medium) else 0,
            layout=self.layout,
        )

    def warnings(self, corpus: Corpus, label: str | None) -> Iterator[str]:
        """Yield a sentence on each probable mistake in the data.

        `label` is the name of the column of labels, if the data have one.
        """
        return iter(())

    # Its predictions.

    def answers(
        self, head: nn.Module, logits: Float[Tensor, "..."], batch: Batch, valid: Valid
    ) -> Mapping[int, Any]:
        """Return the prediction for each example by its index, from the outputs; none by default.

        `valid` marks the real positions of the outputs, which may be fewer than those of the input.
        """
        return {}

    @property
    def has_answers(self) -> bool:
        """Whether the task predicts something for each example."""
        return type(self).answers is not Task.answers

    def answers_of_each(
        self, head: nn.Module, logits: Float[Tensor, "..."], batch: Batch, valid: Valid
    ) -> Mapping[int, Any]:
        """Return `answers` for each example of a batch. Raises `InputError` if one is missing."""
        if not self.has_answers:
            raise undefined(self, [ANSWERS])
        answers = self.answers(head, logits, batch, valid)
        check_answers(self, answers, batch.indices)
        return answers

    def result(
        self, answer: Any, example: Any, tokenizers: Tokenizers | None, labels: Sequence[str]
    ) -> Any:
        """Convert an example's answer to the result for the user; by default they are the same.

        A dataclass or a mapping is written as a line of JSON with its names.
        """
        return answer

    def correct(self, logits: Float[Tensor, "..."], batch: Batch) -> int:
        """Return the number of right predictions, if the task counts them by batch."""
        return 0

    # Its scores.

    def measured_with(self, metric: str, settings: EvalConfig) -> str:
        """Return the package and settings of a metric's scores; empty if none can differ."""
        return ""

    def score(
        self, outputs: Outputs, split: EvaluationSplit, model: Model, n_written: int | None
    ) -> Evaluation:
        """Return the scores other than the loss, and the predictions.

        A task of writing generates the texts of the first `n_written` examples, by default of all.
        """
        return Evaluation({})

    def evaluate(self, model: Model, split: EvaluationSplit, n_written: int | None) -> Evaluation:
        """Run the model on a split, and score its outputs."""
        with torch.inference_mode():
            outputs = self._outputs(model, split)
        evaluation = self.score(outputs, split, model, n_written)
        checked(self, "score", evaluation, Evaluation, "return Evaluation({name: number}, {})")
        check_scores(self, evaluation.scores, is_finite=isfinite(outputs.loss))
        scores = {"loss": outputs.loss, **evaluation.scores}
        metric = split.settings.metric or self.metrics[0]
        if metric not in scores and metric not in self.written_metrics:
            raise InputError(
                f"eval.metric = {metric!r}: {type(self).__name__}.score() gives {', '.join(scores)}"
            )
        return replace(evaluation, scores=scores, batches=outputs.batches)

    def _outputs(self, model: Model, split: EvaluationSplit) -> Outputs:
        device = next(model.parameters()).device
        batches: list[tuple[float, int]] = []
        answers: Any = {} if self.has_answers else Unanswered(self)
        correct = 0
        for batch in split.loader.batches():
            batch = batch.to(device)
            logits, valid = split.logits(model, batch), valid_outputs(model, batch.inputs)
            loss = labels_loss_sum(model.head, logits, batch.targets, valid=valid).item()
            batches.append((loss, batch.n_tokens))
            if self.has_answers:
                answers |= self.answers_of_each(model.head, logits, batch, valid)
            n = self.correct(logits, batch)
            correct += checked(self, "correct", n, int, "return how many targets are right")
        if self.has_answers:
            answers = dict(sorted(answers.items()))
        return Outputs(tuple(batches), answers, correct)
