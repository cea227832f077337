"""Derivatives of gradients that are not torch's: by the definition in torch, or refused."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def gradients(
    definition: Callable[..., Tensor], inputs: Sequence[Tensor | None], dy: Tensor
) -> list[Tensor | None]:
    """The gradient by each input that needs one, and its own derivatives if they are wanted.

    The inputs are those of `backward`, which in turn may depend on each other.
    """
    with torch.enable_grad():
        # As tensors apart, or a gradient would include what leads through other inputs.
        apart = [x.view_as(x) if x is not None and x.requires_grad else x for x in inputs]
        y = definition(*apart)
    wanted = [x for x in apart if x is not None and x.requires_grad]
    grads = iter(torch.autograd.grad(y, wanted, dy, create_graph=torch.is_grad_enabled()))
    return [next(grads) if x is not None and x.requires_grad else None for x in apart]


def once_differentiable(backward: Callable[P, R]) -> Callable[P, R]:
    """Mark a gradient that has no derivative: `create_graph=True` through it raises `RuntimeError`.

    torch's mark of this name leaves a second derivative out without a word where the gradient that
    arrives needs none itself, as that of a sum.
    """

    @wraps(backward)
    def of_first_order(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_differentiated():
            raise RuntimeError(
                f"{backward.__qualname__.split('.')[0].strip('_')} has no second derivative: "
                "compute it without create_graph=True, or by torch's own functions"
            )
        return backward(*args, **kwargs)

    return of_first_order


def is_differentiated() -> bool:
    """Whether a gradient that is computed now will be differentiated once more.

    A compiled graph differentiates nothing twice.
    """
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()
