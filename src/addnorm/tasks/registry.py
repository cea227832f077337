"""The tasks of AddNorm by name, and those that others define."""

from collections.abc import Mapping
from typing import Any

from addnorm.errors import InputError, choices
from addnorm.parts import named
from addnorm.tasks.classification import Classification
from addnorm.tasks.forecasting import Forecasting
from addnorm.tasks.hidden import Denoising, MaskedLanguage
from addnorm.tasks.language import Language
from addnorm.tasks.multi_label import MultiLabel
from addnorm.tasks.regression import Regression
from addnorm.tasks.tagging import Tagging
from addnorm.tasks.task import Task
from addnorm.tasks.translation import SequenceToSequence

TASKS: Mapping[str, Task] = {
    task.name: task
    for task in (
        Language(),
        SequenceToSequence(),
        MaskedLanguage(),
        Denoising(),
        Classification(),
        MultiLabel(),
        Regression(),
        Tagging(),
        Forecasting(),
    )
}
"""The tasks of AddNorm by name."""


def task_named(task: Any) -> Task:
    """The task of this name, or the task itself where it is given as a value or its class.

    A name is one of `TASKS`, `module:Class` of an imported module, or the name of an entry point in
    `addnorm.parts`. Raises `InputError` for anything else.
    """
    if isinstance(task, str) and task in TASKS:
        return TASKS[task]
    try:
        value = named(task) if isinstance(task, str) else task
    except ValueError as error:
        raise InputError(f"task = {task!r}: {error}") from error
    if isinstance(value, type) and issubclass(value, Task):
        value = value()
    if isinstance(value, Task):
        return value
    if value is None:
        raise InputError(f"task = {task!r}.{choices(str(task), TASKS)}")
    raise InputError(
        f"task = {value!r}: a task is a subclass of addnorm.tasks.task.Task, or a value"
    )
