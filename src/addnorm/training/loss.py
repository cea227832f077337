"""Training losses, summed over all targets that are not ignored."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from reprlib import repr as short
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.data.batches.batch import Batch
from addnorm.data.ids.encoding import IGNORE
from addnorm.errors import InputError
from addnorm.nn.choices import DEFAULTS, choices
from addnorm.nn.context import Context
from addnorm.nn.cross_entropy import cross_entropy_and_gradient
from addnorm.nn.functional import at_least_float32, eagerly, once_differentiable
from addnorm.nn.heads import HasLoss as HasLoss
from addnorm.nn.heads import TokenHead
from addnorm.parts import Family


def cross_entropy_sum(
    logits: Float[Tensor, "*batch vocab"],
    targets: Int[Tensor, "*batch"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """`Σ_t -Σ_c y_c log softmax(logits_t)_c` in nats, in float32 or wider.

    `y` is one-hot, mixed with the uniform distribution by `label_smoothing` (Szegedy et al. 2016,
    §7). The sum rather than the mean, so that micro-batches of different sizes add up to the full
    batch.
    """
    if torch.compiler.is_compiling():  # which fuses the definition itself
        return F.cross_entropy(
            at_least_float32(logits).flatten(0, -2),
            targets.flatten(),
            ignore_index=IGNORE,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
    return _CrossEntropySum.apply(  # pyright: ignore[reportReturnType]
        logits.flatten(0, -2), targets.flatten(), label_smoothing
    )


def soft_cross_entropy_sum(
    logits: Float[Tensor, "*batch classes"],
    probabilities: Float[Tensor, "*batch classes"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """`Σ_t -Σ_c y_c log softmax(logits_t)_c` in nats, `y` the probabilities of each row.

    They are mixed with the uniform distribution by `label_smoothing` (Szegedy et al. 2016, §7).
    Computed in float32 or wider.
    """
    wide = at_least_float32(logits)
    return F.cross_entropy(
        wide.flatten(0, -2),
        probabilities.to(wide.dtype).flatten(0, -2),
        reduction="sum",
        label_smoothing=label_smoothing,
    )


def binary_cross_entropy_sum(
    logits: Float[Tensor, "*batch labels"], targets: Shaped[Tensor, "*batch labels"]
) -> Float[Tensor, ""]:
    """`Σ log(1 + exp z) - y z` in nats: independent labels, `y` is 1 for those present.

    `y` may also be a probability. Computed in float32 or wider.
    """
    wide = at_least_float32(logits)
    return F.binary_cross_entropy_with_logits(wide, targets.to(wide.dtype), reduction="sum")


def squared_error_sum(
    outputs: Float[Tensor, "*batch numbers"], targets: Float[Tensor, "*batch numbers"]
) -> Float[Tensor, ""]:
    """`Σ (z - y)²`, in float32 or wider."""
    wide = at_least_float32(outputs)
    return F.mse_loss(wide, targets.to(wide.dtype), reduction="sum")


def loss_sum(
    outputs: Float[Tensor, "*batch outputs"],
    targets: Shaped[Tensor, "*targets"],
    label_smoothing: float = 0.0,
    soft_targets: Float[Tensor, "*batch outputs"] | None = None,
) -> Float[Tensor, ""]:
    """The loss by the dtype of the targets: classes, boolean labels or real values.

    `soft_targets`, the probabilities of the classes, take the place of `targets`. Raises
    `InputError` for label smoothing of anything other than classes.
    """
    if soft_targets is not None:
        return soft_cross_entropy_sum(outputs, soft_targets, label_smoothing)
    if targets.dtype == torch.long:
        return cross_entropy_sum(outputs, targets, label_smoothing)
    if label_smoothing:
        raise InputError(
            f"train.label_smoothing = {label_smoothing} is for classes, and not for several labels "
            "or numbers: leave it out"
        )
    loss = binary_cross_entropy_sum if targets.dtype == torch.bool else squared_error_sum
    return loss(outputs, targets)


def labels_loss_sum(
    head: nn.Module,
    outputs: Float[Tensor, "*batch outputs"],
    targets: Shaped[Tensor, "*targets"],
    label_smoothing: float = 0.0,
    soft_targets: Float[Tensor, "*batch outputs"] | None = None,
    *,
    valid: Bool[Tensor, "rows positions"] | None = None,
) -> Float[Tensor, ""]:
    """The loss of a head's outputs: the head's joint loss if it has one, else `loss_sum`.

    Of a CRF that is `-log p` of all tags of each text. `valid` marks the real positions of the
    outputs. Raises `InputError` for soft targets of outputs that are learnt together.
    """
    if isinstance(head, HasLoss):
        if soft_targets is not None:
            raise InputError(
                "train.batching.augment: mixup and cutmix need a loss of single classes, and "
                f"{type(head).__name__} has a loss of its own: leave them out"
            )
        return _checked(head, outputs, head.loss_sum(outputs, targets, valid))
    return loss_sum(outputs, targets, label_smoothing, soft_targets)


def _checked(head: object, outputs: Tensor, loss: object) -> Tensor:
    """Check the loss that a head has computed, and return it.

    Raises `InputError` unless it is one number to learn by.
    """
    if not isinstance(loss, Tensor):
        result = short(loss)
    elif loss.ndim:
        result = f"a tensor of shape {tuple(loss.shape)}"
    elif outputs.requires_grad and not loss.requires_grad:
        result = "a tensor without a gradient"
    else:
        return loss
    raise InputError(
        f"{type(head).__name__}.loss_sum() returns {result}: return the loss summed over the "
        "targets, a tensor of shape () computed from the outputs"
    )


class CrossEntropy(nn.Module):
    """`Σ_t -log softmax(logits_t)[target_t]`: the cross-entropy, summed over the targets."""

    def forward(
        self, logits: Float[Tensor, "*batch vocab"], targets: Int[Tensor, "*batch"]
    ) -> Float[Tensor, ""]:
        return cross_entropy_sum(logits, targets)


@config
class CrossEntropyConfig:
    """Cross-entropy, smoothed by `train.label_smoothing`.

    For several labels it is the binary cross-entropy of each label. Numbers are learned by the
    squared error, which is the cross-entropy of a normal distribution.
    """

    kind: Literal["cross_entropy"] = "cross_entropy"

    def build(self) -> CrossEntropy:
        return CrossEntropy()


@runtime_checkable
class LossPart(Protocol):
    """A configuration of a custom loss.

    The module it builds is called as `loss(logits, targets)`, the logits of shape `[*batch, vocab]`
    and the targets, -100 where nothing is to be predicted, of shape `[*batch]`. It returns a
    scalar: the sum, not the mean, over the targets that are not ignored. The trainer divides by
    their number, so that micro-batches of different sizes add up to the batch. The module has no
    parameters.
    """

    def build(self) -> nn.Module: ...


LossConfig = Annotated[CrossEntropyConfig | LossPart, Family("loss", LossPart)]
"""Any loss, built-in or custom."""


def head_cross_entropy_sum(
    head: TokenHead,
    x: Float[Tensor, "batch seq d_model"],
    ctx: Context,
    targets: Int[Tensor, "batch seq"],
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """`cross_entropy_sum(head(x), targets)` without materialising all logits.

    Logits, loss and gradient are computed for a few hundred rows of `x` at a time, so that memory
    scales with the hidden states, not with the vocabulary, and no tensor as large as all logits is
    written to memory.
    """
    on_cpu = x.device.type == "cpu"
    logits_at_once = (choices() if on_cpu else DEFAULTS).logits_at_once
    one_graph = torch.compiler.is_compiling() and not on_cpu
    if one_graph or targets.numel() * head.weight.shape[0] <= logits_at_once:
        return cross_entropy_sum(head(x, ctx), targets, label_smoothing)
    grouped = eagerly(_grouped_cross_entropy_sum)
    return grouped(head, x, ctx, targets, label_smoothing, logits_at_once)


def _grouped_cross_entropy_sum(
    head: TokenHead,
    x: Tensor,
    ctx: Context,
    targets: Tensor,
    label_smoothing: float,
    logits_at_once: int,
) -> Tensor:
    """Cross-entropy computed a few rows at a time, outside of a compiled CPU graph."""

    def logits(rows: Tensor) -> Tensor:
        return head(rows[None], ctx).squeeze(0)  # its gradient is a view, that of [0] a copy

    size = max(1, logits_at_once // head.weight.shape[0])
    loss = partial(loss_and_gradient, smoothing=label_smoothing)
    return in_groups(logits, x.flatten(0, 1), targets.flatten(), loss, size, head)


def exits_cross_entropy_sum(
    outputs: Iterable[Float[Tensor, "*batch vocab"]],
    targets: Shaped[Tensor, "*targets"],
    label_smoothing: float = 0.0,
    soft_targets: Float[Tensor, "*batch vocab"] | None = None,
) -> Float[Tensor, ""]:
    """The mean of `loss_sum` over all exits of a model, including the last.

    All exits are trained jointly with equal weights (Teerapittayanon et al. 2016, §III.B; Schwartz
    et al. 2020, §3). Raises `ValueError` if there are none.
    """
    losses = [loss_sum(logits, targets, label_smoothing, soft_targets) for logits in outputs]
    if not losses:
        raise ValueError("the loss of no exits is undefined: a model has at least its last")
    return torch.stack(losses).mean()


class _CrossEntropySum(torch.autograd.Function):
    """The summed loss, computed together with its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, smoothing: float) -> Tensor:
        loss, grad = loss_and_gradient(logits, targets, smoothing)
        ctx.save_for_backward(grad)
        return loss

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * grads[0].to(grad.dtype), None, None


def loss_and_gradient(
    logits: Float[Tensor, "rows vocab"], targets: Int[Tensor, " rows"], smoothing: float
) -> tuple[Float[Tensor, ""], Float[Tensor, "rows vocab"]]:
    """The summed loss of all rows but those to ignore, and its gradient by the logits."""
    return cross_entropy_and_gradient(logits, targets, smoothing, ignored=IGNORE)


LossAndGradient = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""A function of logits and targets that returns the summed loss and its gradient by the logits."""


def in_groups(
    logits: Callable[[Tensor], Tensor],
    rows: Tensor,
    targets: Tensor,
    loss_and_gradient: LossAndGradient,
    size: int,
    head: nn.Module,
) -> Tensor:
    """The sum of the losses of `logits(rows)`, computed `size` rows at a time.

    The gradient by the rows and by the parameters of `head` is computed with the loss, so that the
    logits of all rows are never in memory together.
    """
    if not torch.is_grad_enabled():  # inference mode needs no gradient
        groups = zip(rows.split(size), targets.split(size), strict=True)
        return torch.stack([loss_and_gradient(logits(x), at)[0] for x, at in groups]).sum()
    learned = [p for p in head.parameters() if p.requires_grad]
    return _InGroups.apply(  # pyright: ignore[reportReturnType]
        rows, targets, logits, loss_and_gradient, size, *learned
    )


class _InGroups(torch.autograd.Function):
    """Computes loss and gradients together, group by group; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        targets: Tensor,
        head: Callable[[Tensor], Tensor],
        loss_and_gradient: LossAndGradient,
        size: int,
        *parameters: Tensor,
    ) -> Tensor:
        losses, grads_of_x = list[Tensor](), list[Tensor]()
        grads = [torch.zeros_like(p) for p in parameters]
        for rows, at in zip(x.split(size), targets.split(size), strict=True):
            with torch.enable_grad():
                logits = head(rows := rows.detach().requires_grad_())
            loss, grad = loss_and_gradient(logits.detach(), at)
            grad_of_rows, *more = torch.autograd.grad(logits, [rows, *parameters], grad)
            losses.append(loss)
            grads_of_x.append(grad_of_rows)
            for total, group in zip(grads, more, strict=True):
                total.add_(group)
        ctx.save_for_backward(torch.cat(grads_of_x), *grads)
        return torch.stack(losses).sum()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        of_x, *of_parameters = (grad * grads[0] for grad in ctx.saved_tensors)
        return of_x, None, None, None, None, *of_parameters


@dataclass(frozen=True)
class LogitAdjustment:
    """Replace the outputs `z` in the loss by `z + τ log π` (Menon et al. 2021, eq. 10).

    `π_c = (n_c + 1) / (n + C)` is the share of class `c` among the `n` targets of training; unlike
    Menon et al. we add one to each of the `C` counts, for classes that never occur. The model
    predicts by `z` alone, and so predicts rare classes more often than their share: τ = 1 gives the
    least mean error over classes, and a τ between 0 and 1 trades precision for recall.
    """

    tau: float
    counts: Int[Tensor, " classes"]

    @classmethod
    def of(cls, tau: float, batches: Iterable[Batch]) -> "LogitAdjustment | None":
        """The adjustment for the class frequencies of an epoch's targets; None for τ = 0.

        Raises `InputError` for targets other than classes.
        """
        if not tau:
            return None
        targets = [batch.targets.flatten() for batch in batches]
        if any(of_batch.dtype != torch.long for of_batch in targets):
            raise InputError(
                f"train.logit_adjustment = {tau} is for classes and tags, and not for several "
                "labels or numbers: leave it out"
            )
        ids = torch.cat(targets)
        return cls(tau, ids[ids != IGNORE].bincount())

    def __call__(self, outputs: Float[Tensor, "*batch classes"]) -> Float[Tensor, "*batch classes"]:
        """The adjusted outputs."""
        n = outputs.shape[-1]
        counts = 1.0 + F.pad(self.counts, (0, n - len(self.counts)))
        log_prior = (counts / counts.sum()).log()
        return outputs + self.tau * log_prior.to(outputs)
