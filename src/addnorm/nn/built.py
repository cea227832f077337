"""What a part of someone's own has built, looked at before it stands in a model."""

from collections.abc import Callable
from inspect import signature
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from addnorm.errors import InputError
from addnorm.parts import is_ours, kind_of

T = TypeVar("T")


def built(part: Any, made: Any, wanted: type[T], expected: str) -> T:
    """`made`, which `part` built. Raises `InputError` with what is `expected` for another type.

    Our own parts build what they should.
    """
    if not is_ours(type(part)) and not isinstance(made, wanted):
        what = "None" if made is None else type(made).__name__
        raise InputError(f"{kind_of(part)} builds {what}: {expected}")
    return made


def built_module(
    part: Any, made: Any, call: str, inputs: tuple[Any, ...], *shapes: tuple[int, ...]
) -> nn.Module:
    """`made`, a module that is called as `call`, such as `norm(x, valid)`, and gives a shape.

    A module of someone's own is called once, on `inputs`: what it gives must have one of the
    `shapes`. Raises `InputError` where it cannot be called so, or gives another shape.
    """
    name = call.partition("(")[0]
    module = built(part, made, nn.Module, f"the {name} must be an nn.Module")
    if is_ours(type(part)):
        return module
    try:
        signature(module.forward).bind(*inputs)
    except TypeError as error:
        raise InputError(
            f"{kind_of(part)} builds {type(module).__name__}, which is no {name}: AddNorm calls "
            f"{call}, and {error}"
        ) from error
    training = {one: one.training for one in module.modules()}
    check_shape(part, call, lambda: module.eval()(*inputs), *shapes)
    for one, was in training.items():
        one.training = was
    return module


def check_shape(part: Any, call: str, run: Callable[[], Any], *shapes: tuple[int, ...]) -> None:
    """Raise `InputError` where a call gives something that is no tensor of one of these shapes.

    It draws no number that others would draw. What goes wrong inside is a fault of the part that
    shows itself where it is used, with its traceback.
    """
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found = run()
    except Exception:
        return
    shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if not isinstance(found, Tensor) or (shapes and shape not in shapes):
        right = " or ".join(str(tuple(one)) for one in shapes) or "a tensor"
        raise InputError(f"{kind_of(part)}: {call} gives {shape}, and must give {right}")
