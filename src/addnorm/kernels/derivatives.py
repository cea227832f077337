"""Derivatives of an operator's gradient, which torch computes from the operator's definition."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


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


def is_differentiated() -> bool:
    """Whether a gradient that is computed now will be differentiated once more.

    A compiled graph differentiates nothing twice.
    """
    return torch.is_grad_enabled() and not torch.compiler.is_compiling()
