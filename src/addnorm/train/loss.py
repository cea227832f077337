"""The training loss: cross-entropy summed over the targets that count, and what is added to it."""

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.hooks import RemovableHandle

from addnorm.nn.moe import MixtureOfExperts, load_balance

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


def exits_cross_entropy_sum(
    outputs: Iterable[Float[Tensor, "*batch vocab"]],
    targets: Int[Tensor, "*batch"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """The mean of `cross_entropy_sum` over the logits of every exit of a model, the last included.

    Every exit learns at once and counts alike (Teerapittayanon et al. 2016, §III.B with equal
    weights; Schwartz et al. 2020, §3). Raises `ValueError` where there are none.
    """
    losses = [cross_entropy_sum(logits, targets, label_smoothing) for logits in outputs]
    if not losses:
        raise ValueError("the loss of no exits is undefined: a model has at least its last")
    return torch.stack(losses).mean()


Mixtures = Mapping[str, MixtureOfExperts]
"""The mixtures of experts in a model, by the name of each."""

MASKS = {"encoder": "source_valid", "decoder": "target_valid"}
"""Which argument says what is real in the two stacks of a model; in one of one stack, `valid`."""


def mixtures_of(model: nn.Module) -> Mixtures:
    """The mixtures of experts whose load training has to balance."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, MixtureOfExperts) and module.balance
    }


@contextmanager
def listening(mixtures: Mixtures) -> Generator[dict[str, Tensor]]:
    """The logits of every router, by the name of its mixture, as the model runs inside."""
    said: dict[str, Tensor] = {}

    def hear(name: str) -> RemovableHandle:
        def note(_: nn.Module, __: Any, logits: Tensor) -> None:
            said[name] = logits

        return mixtures[name].router.register_forward_hook(note)

    handles = [hear(name) for name in mixtures]
    try:
        yield said
    finally:
        for handle in handles:
            handle.remove()


def balance_loss(
    mixtures: Mixtures, said: Mapping[str, Tensor], inputs: Mapping[str, Tensor]
) -> Tensor | float:
    """`Σ balance · load_balance` over the mixtures that were heard, padding left out; per token."""
    return sum(
        (
            mixtures[name].balance
            * load_balance(logits, mixtures[name].top_k, _real(name, logits, inputs))
            for name, logits in said.items()
        ),
        start=0.0,
    )


def _real(name: str, logits: Tensor, inputs: Mapping[str, Tensor]) -> Bool[Tensor, "..."] | None:
    """Which tokens of this layer are real; None, all, where the inputs' mask is of another kind."""
    valid = inputs.get(MASKS.get(name.partition(".")[0], "valid"))
    return valid if valid is not None and valid.shape == logits.shape[:-1] else None


class _CrossEntropySum(torch.autograd.Function):
    """`Σ (lse - (1 - ε) l_target - ε mean(l))`, whose gradient is `softmax - y`.

    With a vocabulary of thousands the logits are most of a small model's memory traffic. A few rows
    at a time stay in the processor's cache, and nothing as large as the logits is made but their
    gradient (`benchmarks/results/parts.json`).
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        counted = (targets != IGNORED)[:, None]
        chosen = targets.clamp(min=0)[:, None]
        parts = [
            _losses(_wide(rows), at, smoothing)
            for rows, at in zip(_chunks(logits), _chunks(chosen, logits), strict=True)
        ]
        losses, lse = (torch.cat(part) for part in zip(*parts, strict=True))
        ctx.save_for_backward(logits, chosen, counted, lse)
        ctx.smoothing = smoothing
        return losses.where(counted, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, None, None]:
        logits, chosen, counted, lse = ctx.saved_tensors
        smoothing: float = ctx.smoothing
        scale = grads[0] * counted
        out = torch.empty_like(logits)
        rows = (logits, chosen, lse, scale, out)
        for l, at, norm, by, grad in zip(*(_chunks(r, logits) for r in rows), strict=True):
            y = (_wide(l) - norm).exp_().sub_(smoothing / l.shape[-1])
            y.scatter_add_(1, at, y.new_full((), smoothing - 1).expand_as(at))
            grad.copy_(y.mul_(by))
        return out, None, None


def _losses(logits: Tensor, chosen: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The loss of each row, and its log-sum-exp."""
    lse = logits.logsumexp(-1, keepdim=True)
    losses = lse - (1 - smoothing) * logits.gather(1, chosen)
    return (losses - smoothing * logits.mean(-1, keepdim=True) if smoothing else losses), lse


def _wide(x: Tensor) -> Tensor:
    return x if x.element_size() >= 4 else x.float()


def _chunks(x: Tensor, logits: Tensor | None = None) -> tuple[Tensor, ...]:
    """Rows in groups whose logits take about 4 MB in float32."""
    width = (x if logits is None else logits).shape[-1]
    return x.split(max(1, 2**20 // width))
