"""The training loss: cross-entropy summed over the targets that count."""

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

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
    wide = logits if logits.element_size() >= 4 else logits.float()
    return F.cross_entropy(
        wide.flatten(0, -2),
        targets.flatten(),
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
        reduction="sum",
    )
