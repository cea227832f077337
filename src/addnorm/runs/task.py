"""The task of a model, derived from its architecture and head."""

from typing import Any, get_args

from addnorm.data.examples import Corpus, Task
from addnorm.errors import InputError, nearest
from addnorm.models import DecoderConfig, EncoderConfig, EncoderDecoderConfig, ModelConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    HeadConfig,
    HiddenHeadConfig,
    Problem,
    TaggingHeadConfig,
)
from addnorm.parts import kind_of, members

LABELLED: tuple[Task, ...] = (
    "classification",
    "multi_label",
    "regression",
    "tagging",
    "forecasting",
)
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
    if isinstance(head, ClassificationHeadConfig):
        return PROBLEMS[head.problem]
    if isinstance(head, TaggingHeadConfig):
        return "tagging"
    if isinstance(head, ForecastHeadConfig):
        return "forecasting"
    if isinstance(head, members(HeadConfig)):
        return None
    task = getattr(head, "task", None)
    if task is not None and task not in get_args(Task):
        valid = get_args(Task)
        raise InputError(
            f"model.head: {kind_of(head)} has task = {task!r}.{nearest(str(task), valid)} "
            f"Valid: {', '.join(valid)}."
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
    if task is None and not isinstance(head, members(HeadConfig)):
        raise InputError(
            f"model.head: {kind_of(head)} does not say what it is for: give its class an attribute "
            f"task, one of {', '.join(LABELLED)}"
        )
    raise InputError(
        f"model.head.kind = {kind_of(head)!r} on an encoder has no task here: it gives vectors or "
        "scores of tokens. Valid: classification, tagging, forecast."
    )


def check_corpus(wanted: Task, corpus: Corpus) -> None:
    """Raise `InputError` if the data are for another task than the model."""
    if corpus.task == wanted:
        return
    models: dict[Task, str] = {
        "language": "model.kind = 'decoder'",
        "translation": "model.kind = 'encoder_decoder'",
        "classification": "model.kind = 'encoder' with model.head.kind = 'classification'",
        "multi_label": "model.head = { kind = 'classification', problem = 'multi_label' }",
        "regression": "model.head = { kind = 'classification', problem = 'regression' }",
        "tagging": "model.kind = 'encoder' with model.head.kind = 'tagging'",
        "forecasting": "model.kind = 'encoder' with model.head.kind = 'forecast'",
    }
    raise InputError(
        f"the data are for {corpus.task}, the model is for {wanted}: use {models[corpus.task]}"
    )
