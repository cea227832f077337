"""R-Drop: two passes over a batch with different dropout learn to agree (Liang et al. 2021)."""

from functools import partial

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from addnorm.data.ids.encoding import IGNORE
from addnorm.errors import InputError
from addnorm.nn.choices import DEFAULTS, choices
from addnorm.nn.context import Context
from addnorm.nn.cross_entropy import chunks
from addnorm.nn.functional import at_least_float32, eagerly
from addnorm.nn.heads import TokenHead
from addnorm.training.loss import in_groups, loss_sum


def r_drop_sum(
    outputs: Float[Tensor, "doubled *rest"],
    targets: Shaped[Tensor, "doubled *others"],
    weight: float,
    label_smoothing: float = 0.0,
    soft_targets: Float[Tensor, "doubled classes"] | None = None,
) -> Float[Tensor, ""]:
    """`Σ ½ (CE(p) + CE(q)) + ¼ α (KL(p‖q) + KL(q‖p))` in nats, α the `weight`.

    The halves of `outputs` are the logits of the same examples under two draws of dropout, `p` and
    `q` their softmax. It is half of the loss of Liang et al. (2021, eq. 4), so that it stays a loss
    per target. Raises `InputError` for targets other than classes.
    """
    check_classes(targets, weight)
    supervised = loss_sum(outputs, targets, label_smoothing, soft_targets)
    p, q = at_least_float32(outputs).log_softmax(-1).chunk(2)
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1)
    real = targets.chunk(2)[0] != IGNORE
    return supervised / 2 + weight / 4 * divergence.where(real, 0.0).sum()


def head_r_drop_sum(
    head: TokenHead,
    x: Float[Tensor, "doubled seq d_model"],
    ctx: Context,
    targets: Int[Tensor, "doubled seq"],
    weight: float,
    label_smoothing: float = 0.0,
) -> Float[Tensor, ""]:
    """`r_drop_sum` of `head(x)`, with the logits of a few hundred tokens at a time."""
    check_classes(targets, weight)
    r_drop = eagerly(_head_r_drop_sum)  # gradients are computed by hand
    return r_drop(head, x, ctx, targets, weight, label_smoothing)


def check_classes(targets: Shaped[Tensor, "..."], weight: float) -> None:
    """Raise `InputError` if the targets are not classes."""
    if targets.dtype != torch.long:
        raise InputError(
            f"train.r_drop = {weight} compares probabilities of classes, which several labels and "
            "numbers do not have: leave it out"
        )


def _head_r_drop_sum(
    head: TokenHead, x: Tensor, ctx: Context, targets: Tensor, weight: float, smoothing: float
) -> Tensor:
    pairs = torch.stack([half.flatten(0, 1) for half in x.chunk(2)], dim=1)
    of_pairs = targets.chunk(2)[0].flatten()
    kernels = choices() if x.device.type == "cpu" else DEFAULTS
    with torch.no_grad():  # of which the head here may have a part
        n_outputs = head(pairs[:1], ctx).shape[-1]
    size = max(1, kernels.logits_at_once // (2 * n_outputs))
    loss = partial(_loss_and_gradient, weight=weight, smoothing=smoothing)
    return in_groups(lambda rows: head(rows, ctx), pairs, of_pairs, loss, size, head)


def _loss_and_gradient(
    logits: Float[Tensor, "rows 2 vocab"],
    targets: Int[Tensor, " rows"],
    weight: float,
    smoothing: float,
) -> tuple[Float[Tensor, ""], Float[Tensor, "rows 2 vocab"]]:
    """The loss and its gradient, computed for about 4 MB of logits at a time.

    By the logits of `p`, the gradient of `KL(p‖q) + KL(q‖p)` is `p (log p/q - KL(p‖q)) + p - q`,
    and that of the cross-entropy `p - y`.
    """
    share = weight / 4
    chosen = targets.where(targets != IGNORE, 0)[:, None, None].expand(-1, 2, 1)
    counted = (targets != IGNORE).to(torch.float32)[:, None]
    losses, grad = list[Tensor](), torch.empty_like(logits)
    parts = (chunks(t, logits.flatten(1)) for t in (logits, chosen, counted, grad))
    for l, at, counts, out in zip(*parts, strict=True):
        logp = at_least_float32(l).log_softmax(-1)
        log_likelihood = (1 - smoothing) * logp.gather(2, at)[..., 0].sum(1, keepdim=True)
        if smoothing:
            log_likelihood = log_likelihood + smoothing * logp.mean(-1).sum(1, keepdim=True)
        ratio = logp[:, 0] - logp[:, 1]
        p, q = logp.exp_().unbind(1)
        kl_pq, kl_qp = (p * ratio).sum(-1, keepdim=True), -(q * ratio).sum(-1, keepdim=True)
        losses.append((counts * (share * (kl_pq + kl_qp) - log_likelihood / 2)).sum())
        of_p = ratio.sub(kl_pq - 1).mul_(share).add_(0.5).mul_(p).sub_(q, alpha=share)
        of_q = ratio.neg_().sub_(kl_qp - 1).mul_(share).add_(0.5).mul_(q).sub_(p, alpha=share)
        grads = torch.stack((of_p, of_q), 1).sub_(smoothing / 2 / l.shape[-1])
        grads.scatter_add_(2, at, torch.full_like(at, (smoothing - 1) / 2, dtype=grads.dtype))
        out.copy_(grads.mul_(counts[..., None]))
    return torch.stack(losses).sum(), grad
