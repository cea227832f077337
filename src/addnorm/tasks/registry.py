"""The tasks by name, built-in and custom ones, and the task of a model."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, runtime_checkable

from addnorm import tasks
from addnorm.data.batches.buckets import BatchingConfig
from addnorm.data.examples import Corpus
from addnorm.errors import InputError, choices, with_article
from addnorm.models import (
    DecoderConfig,
    DualEncoderConfig,
    EncoderConfig,
    EncoderDecoderConfig,
    ModelConfig,
)
from addnorm.models.inputs import TokenInputConfig
from addnorm.nn.heads import HeadConfig, HiddenHeadConfig, TokenHeadConfig
from addnorm.parts import kind_of, members, named
from addnorm.tasks.contract import check_task, checked
from addnorm.tasks.language import Language
from addnorm.tasks.task import Task, undefined


def _defined() -> Iterator[Task]:
    """The tasks defined in this folder: one named class each."""
    for file in sorted(iter_modules(tasks.__path__), key=lambda file: file.name):
        name = f"{tasks.__name__}.{file.name}"
        if name == __name__:
            continue
        module = import_module(name)
        for value in vars(module).values():
            if not (isinstance(value, type) and issubclass(value, Task)):
                continue
            if value.__module__ == module.__name__ and hasattr(value, "name"):
                yield value()


TASKS: Mapping[str, Task] = {task.name: task for task in _defined()}
"""The tasks of AddNorm by name."""


def task_named(task: Any) -> Task:
    """Return the task with this name, or the given task, which may be a value or a class.

    A name is one of `TASKS`, `module:Class` of an imported module, or the name of an entry point in
    `addnorm.parts`. Raises `InputError` for anything else, and for a class that lacks a method.
    """
    if isinstance(task, str) and task in TASKS:
        return TASKS[task]
    try:
        value = named(task) if isinstance(task, str) else task
    except ValueError as error:
        raise InputError(f"task = {task!r}: {error}") from error
    if isinstance(value, type) and issubclass(value, Task):
        value = _made(value)
    if isinstance(value, Task):
        check_task(value, Task)
        if lacks := value.lacks():
            raise undefined(value, lacks)
        return value
    if value is None:
        raise InputError(f"task = {task!r}.{choices(str(task), TASKS)}")
    raise InputError(
        f"task = {value!r}: a task is a subclass of addnorm.tasks.task.Task, or a value"
    )


def _made(kind: type[Task]) -> Task:
    """An instance of a task's class.

    Raises `InputError` if it takes arguments that have no default.
    """
    try:
        return kind()
    except TypeError as error:
        raise InputError(f"task = {kind.__name__}: {error}: give the task as a value") from error


LABELLED = tuple(name for name, task in TASKS.items() if task.labels)
"""The tasks whose outputs are labels or numbers of the data."""


WITH_TASK = tuple(
    kind_of(head)
    for head in members(HeadConfig)
    if head is TokenHeadConfig or getattr(head, "task", None) is not None
)
"""The kinds of heads with which an encoder has a task."""


def task_of_head(head: Any) -> Task | None:
    """The task named by the `task` attribute of a head's configuration; None if there is none.

    Raises `InputError` for an unknown task.
    """
    task = getattr(head, "task", None)
    try:
        return None if task is None else task_named(task)
    except InputError as error:
        raise InputError(f"model.head: {kind_of(head)} has {error}") from error


def has_labels(model: ModelConfig) -> bool:
    """Whether the outputs of a model correspond to labels of its data."""
    if not isinstance(model, EncoderConfig):
        return False
    task = task_of_head(model.head)
    return task is not None and task.labels


def writes_text(model: ModelConfig) -> bool:
    """Return whether a model has a tokenizer besides its input: to write text, or to compare it."""
    if not isinstance(model, EncoderConfig):
        return True
    task = task_of_head(model.head)
    return task is not None and task.writes_text


def task_of_model(model: ModelConfig) -> Task:
    """Return the task of a model. Raises `InputError` for none, or a head of another task."""
    head = model.head
    task = task_of_head(head)
    if isinstance(model, DecoderConfig) and isinstance(head, HiddenHeadConfig):
        raise InputError(
            "model.head.kind = 'hidden' on a decoder has no task here: it gives vectors, by "
            "`run.embed(texts)`, and writes no text"
        )
    if isinstance(model, DualEncoderConfig):
        return TASKS["contrastive"]
    if isinstance(model, DecoderConfig | EncoderDecoderConfig):
        writes = TASKS["language" if isinstance(model, DecoderConfig) else "translation"]
        if not (task is None or isinstance(task, Language | type(writes))):
            raise InputError(
                f"model.head: {kind_of(head)} is for {task.name}, and a model of kind "
                f"{kind_of(model)!r} writes tokens: use it with model.kind = 'encoder'"
            )
        return writes
    if task is not None and not task.decodes:
        made = task.for_model(model)
        return checked(task, "for_model", made, Task, "return the task for this model")
    if isinstance(head, TokenHeadConfig) and isinstance(model.input, TokenInputConfig):
        return TASKS["masked_language"]
    if task is None and not isinstance(head, members(HeadConfig)):
        raise InputError(
            f"model.head: {kind_of(head)} does not say what it is for: give its class an attribute "
            f"task, one of {', '.join(LABELLED)}, or a task of your own"
        )
    raise InputError(
        f"model.head.kind = {kind_of(head)!r} on an encoder has no task here: it gives vectors or "
        f"scores. Valid: {', '.join(WITH_TASK)}."
    )


def task_of_training(model: ModelConfig, batching: BatchingConfig) -> Task:
    """The task of a model that learns from these batches.

    Raises `InputError` as `task_of_model`.
    """
    task = task_of_model(model)
    made = task.with_batching(batching)
    return checked(task, "with_batching", made, Task, "return the task for these batches")


HIDING = {task.batching: task for task in TASKS.values() if task.batching is not None}
"""The tasks that hide parts of plain texts, by the batches which do."""

OURS = members(BatchingConfig)


def check_batching(task: Task, batching: BatchingConfig) -> None:
    """Raise `InputError` for batches that hide text if the model's task hides nothing.

    And for a masked language model with others. Custom batches are let through.
    """
    wanted, hides = task.batching, type(batching) in HIDING
    if not isinstance(batching, OURS) or (type(batching) is wanted if wanted else not hides):
        return
    kind = f"train.batching.kind = {kind_of(batching)!r}"
    if wanted is not None:
        plain = task.name.replace("_", " ")
        raise InputError(
            f"{kind} hides no tokens, and {with_article(plain)} model learns to predict "
            f"those: give {kind_of(wanted)!r}, or for another task its model.head, such as "
            "'classification'"
        )
    models = {
        "masked": "an encoder with model.head.kind = 'token'",
        "denoising": "model.kind = 'encoder_decoder'",
    }
    raise InputError(f"{kind} is for {models[kind_of(batching)]}; this model is for {task.name}")


def check_corpus(task: Task, corpus: Corpus, *, learns: bool = True) -> None:
    """Raise `InputError` if the data are for a task other than the model's.

    It advises another model, unless the model has learnt already.
    """
    if issubclass(corpus.kind, task.examples):
        return
    other = TASKS.get(corpus.task)
    kinds = " or ".join(kind.__name__ for kind in task.examples)
    use = f"give examples of {kinds}"
    if learns and other is not None and other is not task:
        use = f"use {other.model}"
    data = f"the data are {corpus.kind.__name__} examples for {task.name}"
    if corpus.task != task.name:
        data = f"the data are for {corpus.task}, the model is for {task.name}"
    raise InputError(f"{data}: {use}")


@runtime_checkable
class HasTask(Protocol):
    """A model with a name, a task and the call that uses it."""

    @property
    def name(self) -> str: ...
    @property
    def task_value(self) -> Task: ...
    @property
    def call(self) -> str: ...


def wrong_task(model: HasTask, cannot: str) -> InputError:
    """Return the error for a model of another task; `cannot` names the missing ability."""
    task = model.task_value.name.replace("_", " ")
    return InputError(f"{model.name}: {with_article(task)} model {cannot}: use `{model.call}`")
