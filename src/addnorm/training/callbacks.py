"""Callbacks: objects that are called after training steps, validations and checkpoints."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from inspect import iscoroutinefunction, signature
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from addnorm.errors import InputError, nearest
from addnorm.training.random_state import random_state, restore_random_state


@dataclass(frozen=True)
class StepEvent:
    """A completed step of the optimiser.

    `step` counts from 1. `figures` are those of the step in `metrics.jsonl`: `epoch`, `loss`,
    `grad_norm`, `lr`, `tokens`, and the load of experts where there are any.
    """

    step: int
    total_steps: int
    figures: Mapping[str, float]

    @property
    def loss(self) -> float:
        """The loss per token of the step's batch."""
        return self.figures["loss"]


@dataclass(frozen=True)
class ValidationEvent:
    """The scores of a validation by name, such as `loss` and `accuracy`.

    `is_best` says whether `eval.metric` is the best so far. `measured_with` names, by metric, the
    settings that a figure depends on. `load` has the load of experts in the last step.
    """

    step: int
    total_steps: int
    scores: Mapping[str, float]
    is_best: bool = False
    measured_with: Mapping[str, str] = field(default_factory=dict[str, str])
    load: Mapping[str, float] = field(default_factory=dict[str, float])

    @property
    def figures(self) -> dict[str, float]:
        """The scores by their names in `metrics.jsonl`: `valid_loss` and so on."""
        return {f"valid_{name}": score for name, score in self.scores.items()}


@dataclass(frozen=True)
class SaveEvent:
    """A complete checkpoint on the disk, in `folder`."""

    step: int
    total_steps: int
    folder: Path


@runtime_checkable
class OnStep(Protocol):
    """A callback that is called after every step."""

    def on_step(self, event: StepEvent, /) -> Any: ...


@runtime_checkable
class OnValidation(Protocol):
    """A callback that is called after every validation."""

    def on_validation(self, event: ValidationEvent, /) -> Any: ...


@runtime_checkable
class OnSave(Protocol):
    """A callback that is called after every checkpoint."""

    def on_save(self, event: SaveEvent, /) -> Any: ...


Callback = OnStep | OnValidation | OnSave
"""An object with any of the three methods; others are not called.

One that is a context manager is entered before the first step, and left after the last or when
training ends early, with the exception.
"""

METHODS = ("on_step", "on_validation", "on_save")


class Heard(NamedTuple):
    """The last step and validation of which a callback was told before training resumed."""

    step: int = 0
    validation: int = 0


class Callbacks:
    """Calls several callbacks in order, without changing the random numbers of training.

    `failure` is the error of a callback, which ends training as it is.
    """

    def __init__(self, callbacks: Iterable[Callback], device: torch.device) -> None:
        self._callbacks = [(callback, Heard()) for callback in callbacks]
        self._device = device
        self.failure: Exception | None = None

    def add(self, callback: Callback, heard: Heard) -> None:
        """Add a callback; events that it has `heard` already are not repeated."""
        self._callbacks.append((callback, heard))

    @contextmanager
    def entered(self) -> Generator[None]:
        """Enter the callbacks that are context managers."""
        with ExitStack() as stack:
            for callback, _ in self._callbacks:
                if isinstance(callback, AbstractContextManager):
                    stack.enter_context(callback)
            yield

    def step(self, event: StepEvent) -> None:
        """Call the callbacks for a step."""
        new = [c for c, heard in self._callbacks if event.step > heard.step]
        self._call([partial(c.on_step, event) for c in new if isinstance(c, OnStep)])

    def validation(self, event: ValidationEvent) -> None:
        """Call the callbacks for a validation."""
        new = [c for c, heard in self._callbacks if event.step > heard.validation]
        self._call([partial(c.on_validation, event) for c in new if isinstance(c, OnValidation)])

    def save(self, event: SaveEvent) -> None:
        """Call the callbacks for a checkpoint."""
        callbacks = [c for c, _ in self._callbacks]
        self._call([partial(c.on_save, event) for c in callbacks if isinstance(c, OnSave)])

    def _call(self, methods: Sequence["partial[Any]"]) -> None:
        if not methods:
            return
        state = random_state(self._device)
        try:
            for method in methods:
                method()
        except Exception as error:
            self.failure = error
            raise
        restore_random_state(state, self._device)


def check_callbacks(callbacks: Any) -> tuple[Callback, ...]:
    """Check the callbacks given to `addnorm.train(callbacks=…)`, and return them.

    Raises `InputError` for an object without any method that is called, for a class, and for a
    method that does not take the event alone.
    """
    if not isinstance(callbacks, list | tuple):
        raise InputError(f"callbacks is a list of objects: callbacks=[{_named(callbacks)}]")
    for callback in callbacks:
        if isinstance(callback, type):
            raise InputError(f"callbacks: {callback.__name__} is a class: give an object of it")
        methods = [name for name in METHODS if callable(getattr(callback, name, None))]
        if not methods:
            names = [name for name in dir(callback) if name.startswith("on")]
            near = "".join([nearest(name, METHODS) for name in names][:1])
            raise InputError(
                f"callbacks: {_named(callback)} has none of the methods {', '.join(METHODS)}.{near}"
            )
        for name in methods:
            _check_takes_event(callback, name)
    return tuple(callbacks)


def _check_takes_event(callback: object, name: str) -> None:
    """Raise `InputError` for a method that is async or cannot be called with the event alone."""
    method = getattr(callback, name)
    if iscoroutinefunction(method):
        raise InputError(
            f"callbacks: {_named(callback)}.{name} is async, and training awaits nothing: give a "
            "plain function"
        )
    try:
        signature(method).bind(None)
    except ValueError:  # one of C has no signature
        return
    except TypeError as error:
        raise InputError(
            f"callbacks: {_named(callback)}.{name} is called with the event alone: {error}"
        ) from error


def _named(value: object) -> str:
    return type(value).__name__
