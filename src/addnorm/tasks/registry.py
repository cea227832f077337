"""Tasks by name: built-in and custom ones."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from addnorm import tasks
from addnorm.errors import InputError, choices
from addnorm.parts import named
from addnorm.tasks.contract import check_task
from addnorm.tasks.task import Task, undefined

ABOVE = ("encoding", "of_model", "registry")
"""The files of this folder that read the list of tasks, and define none."""


def _defined() -> Iterator[Task]:
    """The tasks defined in this folder: one named class each."""
    for file in sorted(iter_modules(tasks.__path__), key=lambda file: file.name):
        if file.name in ABOVE:
            continue
        module = import_module(f"{tasks.__name__}.{file.name}")
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
