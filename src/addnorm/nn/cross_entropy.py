"""The cross-entropy of classes together with its gradient, by the fastest kernel (`choices`)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from addnorm.kernels.build import is_loaded
from addnorm.kernels.cross_entropy import DTYPES, OPERATOR, cross_entropy
from addnorm.nn.choices import choices, takes_operators
from addnorm.nn.functional import at_least_float32


def cross_entropy_and_gradient(
    logits: Float[Tensor, "rows vocab"],
    targets: Int[Tensor, " rows"],
    smoothing: float,
    *,
    ignored: int,
) -> tuple[Float[Tensor, ""], Float[Tensor, "rows vocab"]]:
    """The loss `Σ (lse - (1 - ε) l_target - ε mean(l))` and its gradient `softmax - y`.

    Rows whose target is `ignored` count as zero. With a vocabulary of thousands, the logits
    dominate a small model's memory traffic. Processing a few rows at a time keeps them in the CPU
    cache, computes each exponential once, and allocates no tensor as large as the logits except
    the gradient (`benchmarks/results/parts.json`).
    """
    if _by_operator(logits, targets):
        by_row, grad = cross_entropy(logits, targets, smoothing, ignored=ignored)
        return by_row.sum(), grad
    chosen = targets.where(targets != ignored, 0)[:, None]  # `gather` refuses other negative ids
    counted = (targets != ignored)[:, None]
    losses, grad = list[Tensor](), torch.empty_like(logits)
    parts = (chunks(t, logits) for t in (logits, chosen, counted, grad))
    for l, at, counts, out in zip(*parts, strict=True):
        largest = l.amax(-1, keepdim=True)
        wide = at_least_float32(l)
        y = (wide - largest).exp_()
        total = y.sum(-1, keepdim=True)
        loss = largest + total.log() - (1 - smoothing) * wide.gather(1, at)
        if smoothing:
            loss = loss - smoothing * wide.mean(-1, keepdim=True)
        losses.append(loss.where(counts, 0.0).sum())
        counts = counts.to(y.dtype)
        y.mul_(counts / total).sub_(counts * (smoothing / l.shape[-1]))
        y.scatter_add_(1, at, counts * (smoothing - 1))
        out.copy_(y)
    return torch.stack(losses).sum(), grad


def chunks(x: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
    """Split the rows into groups whose logits take about 4 MB in float32."""
    return x.split(max(1, 2**20 // logits.shape[-1]))


def _by_operator(logits: Tensor, targets: Tensor) -> bool:
    return (
        takes_operators(logits, targets)
        and targets.dtype is torch.int64
        and not torch.compiler.is_compiling()
        and logits.dtype in DTYPES
        and logits.shape[-1] > 0
        and choices().cross_entropy == "operator"
        and is_loaded(OPERATOR)
    )
