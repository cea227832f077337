"""Interrupts a long computation between two layers once its result is no longer wanted."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from torch import nn


class Interrupted(Exception):
    """The result of a computation is no longer wanted."""


@contextmanager
def interruptible(model: nn.Module, check: Callable[[], None]) -> Generator[None]:
    """Call `check` before each module of the model, which may raise `Interrupted`."""

    def before(*_: Any) -> None:
        check()

    hooks = [module.register_forward_pre_hook(before) for module in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
