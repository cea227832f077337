"""The task of a model, derived from its architecture and head."""

from typing import Any, Protocol, get_args, runtime_checkable

from addnorm.data.batches.buckets import (
    BatchingConfig,
    DenoisingConfig,
    ExamplesConfig,
    FramesConfig,
    MaskedConfig,
    PackedConfig,
    TokensConfig,
    WindowsConfig,
)
from addnorm.data.examples import Corpus, Task
from addnorm.errors import InputError, choices
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.models.inputs import TokenInputConfig
from addnorm.nn.crf import CRFHeadConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    HiddenHeadConfig,
    Problem,
    TaggingHeadConfig,
    TokenHeadConfig,
)
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.parts import kind_of, members
from addnorm.tasks.registry import TASKS

LABELLED = tuple(name for name, task in TASKS.items() if task.labels)
"""The tasks whose outputs are labels or numbers of the data."""

PROBLEMS: dict[Problem, Task] = {
    "single_label": "classification",
    "multi_label": "multi_label",
    "regression": "regression",
}
"""The tasks of a classification head."""


def task_of_head(head: Any) -> Task | None:
    """The task of a head: of a built-in one by its type, of a custom one by its attribute `task`.

    None if it has none. Raises `InputError` for an unknown task.
    """
    if isinstance(head, ClassificationHeadConfig | SimilarityHeadConfig):
        return PROBLEMS[head.problem]
    if isinstance(head, TaggingHeadConfig | CRFHeadConfig):
        return "tagging"
    if isinstance(head, ForecastHeadConfig):
        return "forecasting"
    if isinstance(head, members(HeadConfig)):
        return None
    task = getattr(head, "task", None)
    if task is not None and task not in get_args(Task):
        valid = get_args(Task)
        raise InputError(
            f"model.head: {kind_of(head)} has task = {task!r}.{choices(str(task), valid)}"
        )
    return task


def has_labels(model: ModelConfig) -> bool:
    """Whether the outputs of a model correspond to labels of its data."""
    return isinstance(model, EncoderConfig) and task_of_head(model.head) in LABELLED


def task_of_model(model: ModelConfig) -> Task:
    """The task of a model. Raises `InputError` if it has none, or its head is for another."""
    head = model.head
    task = task_of_head(head)
    if isinstance(model, DecoderConfig) and isinstance(head, HiddenHeadConfig):
        raise InputError(
            "model.head.kind = 'hidden' on a decoder has no task here: it gives vectors (see "
            "`addnorm embed`), and writes no text"
        )
    if isinstance(model, DecoderConfig | EncoderDecoderConfig):
        writes: Task = "language" if isinstance(model, DecoderConfig) else "translation"
        if task not in (None, "language", writes):
            raise InputError(
                f"model.head: {kind_of(head)} is for {task}, and a model of kind "
                f"{kind_of(model)!r} writes tokens: use it with model.kind = 'encoder'"
            )
        return writes
    if task in LABELLED:
        return task
    if isinstance(head, TokenHeadConfig) and isinstance(model.input, TokenInputConfig):
        return "masked_language"
    if task is None and not isinstance(head, members(HeadConfig)):
        raise InputError(
            f"model.head: {kind_of(head)} does not say what it is for: give its class an attribute "
            f"task, one of {', '.join(LABELLED)}"
        )
    raise InputError(
        f"model.head.kind = {kind_of(head)!r} on an encoder has no task here: it gives vectors or "
        "scores. Valid: classification, similarity, tagging, crf, token, forecast."
    )


def task_of_training(model: ModelConfig, batching: BatchingConfig) -> Task:
    """The task of a model that learns from such batches. Raises `InputError` as `task_of_model`."""
    task = task_of_model(model)
    denoises = task == "translation" and isinstance(batching, DenoisingConfig)
    return "denoising" if denoises else task


HIDING: dict[Task, type] = {"masked_language": MaskedConfig, "denoising": DenoisingConfig}
"""The batches of tasks that hide parts of plain texts."""

OURS = (TokensConfig, WindowsConfig, PackedConfig, ExamplesConfig, FramesConfig, *HIDING.values())


def check_batching(task: Task, batching: BatchingConfig) -> None:
    """Raise `InputError` for batches that hide text of a model for which nothing is hidden.

    And for a masked language model with others. Custom batches are let through.
    """
    wanted = HIDING.get(task)
    hides = isinstance(batching, (*HIDING.values(),))
    if not isinstance(batching, OURS) or (type(batching) is wanted if wanted else not hides):
        return
    kind = f"train.batching.kind = {kind_of(batching)!r}"
    if wanted is not None:
        raise InputError(
            f"{kind} hides no tokens, and a {task.replace('_', ' ')} model learns to say those: "
            f"give {kind_of(wanted)!r}"
        )
    models = {
        "masked": "an encoder with model.head.kind = 'token'",
        "denoising": "model.kind = 'encoder_decoder'",
    }
    raise InputError(f"{kind} is for {models[kind_of(batching)]}; this model is for {task}")


def check_corpus(wanted: Task, corpus: Corpus) -> None:
    """Raise `InputError` if the data are for another task than the model."""
    if corpus.task == (TASKS[wanted].learns_from or wanted):
        return
    raise InputError(
        f"the data are for {corpus.task}, the model is for {wanted}: use {TASKS[corpus.task].model}"
    )


@runtime_checkable
class HasTask(Protocol):
    """A model with a name and a task."""

    @property
    def name(self) -> str: ...
    @property
    def task(self) -> Task: ...


def wrong_task(model: HasTask, cannot: str) -> InputError:
    """The error for a model whose task is another; `cannot` says what it does not do."""
    use = TASKS[model.task].command
    return InputError(f"{model.name}: a {model.task} model {cannot}: use `{use}`")
