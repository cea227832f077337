"""Cross-entropy over processes that each compute the logits of a part of the vocabulary."""

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from addnorm.data.ids.encoding import IGNORE
from addnorm.nn.choices import DEFAULTS
from addnorm.nn.context import Context
from addnorm.nn.functional import at_least_float32
from addnorm.nn.heads import TokenHead
from addnorm.training.loss import in_groups
from addnorm.training.parallel.pieces import Piece, copied


def vocabulary_cross_entropy_sum(
    head: TokenHead,
    x: Float[Tensor, "batch seq d_model"],
    ctx: Context,
    targets: Int[Tensor, "batch seq"],
    label_smoothing: float,
    vocabulary: Piece,
) -> Float[Tensor, ""]:
    """`head_cross_entropy_sum`, with each process computing its rows of the head.

    The loss is the same in every process. Three numbers of a token are exchanged and not its logits
    (Shoeybi et al. 2019, §3); the vocabulary of label smoothing is the whole one.
    """

    def logits(rows: Tensor) -> Tensor:
        return TokenHead.forward(head, copied(rows[None], vocabulary.group), ctx).squeeze(0)

    size = max(1, DEFAULTS.logits_at_once // vocabulary.total)  # in all processes the same
    loss = partial(loss_and_gradient, smoothing=label_smoothing, vocabulary=vocabulary)
    return in_groups(logits, x.flatten(0, 1), targets.flatten(), loss, size, head)


def loss_and_gradient(
    logits: Float[Tensor, "rows piece"],
    targets: Int[Tensor, " rows"],
    smoothing: float,
    vocabulary: Piece,
) -> tuple[Float[Tensor, ""], Float[Tensor, "rows piece"]]:
    """The loss `Σ (lse - (1 - ε) l_target - ε mean(l))`, and its gradient `softmax - y`.

    Log-sum-exp `lse` and mean are over the whole vocabulary, the gradient is by these logits.
    """
    first, last = vocabulary.bounds
    counts = (targets != IGNORE)[:, None]
    own = ((targets >= first) & (targets < last))[:, None]
    place = (targets[:, None] - first).where(own, 0)
    wide = at_least_float32(logits)
    largest = vocabulary.group.largest(wide.amax(-1, keepdim=True))
    y = (wide - largest).exp()
    parts = [y.sum(-1, keepdim=True), wide.gather(1, place).where(own, 0.0)]
    parts += [wide.sum(-1, keepdim=True)] if smoothing else []
    total, of_target, *sums = vocabulary.group.sum(torch.cat(parts, 1)).split(1, 1)
    loss = largest + total.log() - (1 - smoothing) * of_target
    for sum_of_all in sums:
        loss = loss - smoothing * sum_of_all / vocabulary.total
    counted = counts.to(y.dtype)
    y = y * (counted / total) - counted * (smoothing / vocabulary.total)
    y.scatter_add_(1, place, counted * own * (smoothing - 1))
    return loss.where(counts, 0.0).sum(), y.to(logits.dtype)
