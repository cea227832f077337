"""The loss of a head's logits, computed with its gradient for a few rows at a time."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LossAndGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From logits and targets to the summed loss and its gradient by the logits."""


def in_groups(
    logits: Callable[[Tensor], Tensor],
    rows: Tensor,
    targets: Tensor,
    of: LossAndGradient,
    size: int,
    head: nn.Module,
) -> Tensor:
    """The sum of `of(logits(rows), targets)`, computed for `size` rows at a time.

    The gradient by the rows and by the parameters of `head` is computed with the loss, so that the
    logits of all rows are never in memory together.
    """
    if not torch.is_grad_enabled():  # inference mode has no gradients to compute beside the loss
        parts = zip(rows.split(size), targets.split(size), strict=True)
        return torch.stack([of(logits(some), at)[0] for some, at in parts]).sum()
    learned = [p for p in head.parameters() if p.requires_grad]
    return _InGroups.apply(  # pyright: ignore[reportReturnType]
        rows, targets, logits, of, size, *learned
    )


class _InGroups(torch.autograd.Function):
    """Computes loss and gradients together, group by group; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        targets: Tensor,
        head: Callable[[Tensor], Tensor],
        of: LossAndGradient,
        size: int,
        *parameters: Tensor,
    ) -> Tensor:
        losses, of_x = list[Tensor](), list[Tensor]()
        of_parameters = [torch.zeros_like(p) for p in parameters]
        for rows, at in zip(x.split(size), targets.split(size), strict=True):
            with torch.enable_grad():
                logits = head(rows := rows.detach().requires_grad_())
            loss, grad = of(logits.detach(), at)
            of_rows, *others = torch.autograd.grad(logits, [rows, *parameters], grad)
            losses.append(loss)
            of_x.append(of_rows)
            for total, other in zip(of_parameters, others, strict=True):
                total.add_(other)
        ctx.save_for_backward(torch.cat(of_x), *of_parameters)
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        of_x, *of_parameters = (saved * grads[0] for saved in ctx.saved_tensors)
        return of_x, None, None, None, None, *of_parameters
