"""The training loss: cross-entropy summed over the targets that count."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

IGNORED = -100
"""The target of a token that predicts nothing."""


def cross_entropy_sum(
    logits: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """`Σ_t -Σ_c y_c log softmax(logits_t)_c` in nats, in float32 or wider.

    `y` is one-hot, mixed with the uniform distribution by `label_smoothing` (Szegedy et al. 2016,
    §7). The sum, not the mean: micro-batches of different sizes then add up to the big batch.
    """
    return _CrossEntropySum.apply(  # pyright: ignore[reportReturnType]
        logits.flatten(0, -2), targets.flatten(), label_smoothing
    )


class _CrossEntropySum(torch.autograd.Function):
    """`Σ (lse - (1 - ε) l_target - ε mean(l))`, whose gradient is `softmax - y`.

    With a vocabulary of thousands the logits are most of a small model's memory traffic; writing
    the gradient out reads them three times where torch's log-softmax and smoothing read and write
    them eight times (`benchmarks/results/cross_entropy.md`).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        wide = logits if logits.element_size() >= 4 else logits.float()
        counted = (targets != IGNORED)[:, None]
        chosen = targets.clamp(min=0)[:, None]
        lse = wide.logsumexp(-1, keepdim=True)
        losses = lse - (1 - smoothing) * wide.gather(1, chosen)
        if smoothing:
            losses = losses - smoothing * wide.mean(-1, keepdim=True)
        ctx.save_for_backward(logits, chosen, counted, lse)
        ctx.smoothing = smoothing
        return losses.where(counted, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits, chosen, counted, lse = ctx.saved_tensors
        grad = (logits - lse).exp_()
        if ctx.smoothing:
            grad -= ctx.smoothing / logits.shape[-1]
        grad.scatter_add_(1, chosen, grad.new_full((), ctx.smoothing - 1).expand_as(chosen))
        return grad.mul_(grads[0] * counted).to(logits.dtype), None, None
