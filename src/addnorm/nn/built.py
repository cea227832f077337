"""Checks on what a custom part builds: its type, its call signature and its output shape."""

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.parts import is_ours, kind_of

T = TypeVar("T")


def built(part: Any, made: Any, wanted: type[T], expected: str) -> T:
    """Return `made`, which `part` built, if it is a `wanted`; else raise `InputError`.

    The message contains `expected`. Built-in parts are not checked.
    """
    if not is_ours(type(part)) and not isinstance(made, wanted):
        result = "None" if made is None else type(made).__name__
        raise InputError(f"{kind_of(part)} builds {result}: {expected}")
    return made


def built_module(
    part: Any, made: Any, call: str, inputs: tuple[Any, ...], *shapes: tuple[int, ...]
) -> nn.Module:
    """Return `made`, a module to be called as `call`, such as `norm(x, valid)`.

    A custom module is called once on `inputs`, and its output must have one of the `shapes`. Raises
    `InputError` if it cannot be called this way or its output has another shape.
    """
    name = call.partition("(")[0]
    module = built(part, made, nn.Module, f"the {name} must be an nn.Module")
    if is_ours(type(part)):
        return module
    try:
        signature(module.forward).bind(*inputs)
    except TypeError as error:
        raise InputError(
            f"{kind_of(part)} builds {type(module).__name__}, which does not fit as {name}: "
            f"AddNorm calls {call}, and {error}"
        ) from error
    training = {m: m.training for m in module.modules()}
    check_shape(part, call, lambda: module.eval()(*inputs), *shapes)
    for m, was in training.items():
        m.training = was
    return module


def check_shape(part: Any, call: str, run: Callable[[], Any], *shapes: tuple[int, ...]) -> None:
    """Raise `InputError` unless a call returns a tensor of one of these shapes.

    The random state is restored. An exception raised inside the part is a bug of the part: it is
    ignored here and surfaces with its traceback when the model runs.
    """
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            output = run()
    except Exception:
        return
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if not isinstance(output, Tensor) or (shapes and shape not in shapes):
        right = " or ".join(str(tuple(shape)) for shape in shapes) or "a tensor"
        raise InputError(f"{kind_of(part)}: {call} gives {shape}, and must give {right}")
