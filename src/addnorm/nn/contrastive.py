"""The contrastive head of two encoders: how well each picture and each text fit together."""

import math
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.nn.functional import at_least_float32
from addnorm.nn.vectors import VectorHead, VectorHeadConfig, Vectors

PairLoss = Literal["softmax", "sigmoid"]
"""Whether a picture is told from the others of its batch, or each pair is judged by itself."""

MOST_SCALE = 100.0
"""The largest scale in training by softmax (Radford et al. 2021, §2.5)."""


def unit(vectors: Vectors) -> Vectors:
    """`v / ‖v‖`: vectors of length one, whose dot products are cosines."""
    return F.normalize(vectors, dim=-1)


def softmax_loss(z: Float[Tensor, "pairs pairs"]) -> Float[Tensor, ""]:
    """`-½ Σ_i (log softmax_j(z_ij)_i + log softmax_j(z_ji)_i)` (Radford et al. 2021, fig. 3).

    In nats, summed over the pairs, which are on the diagonal: each picture is told from the others
    of its batch, and each text.
    """
    own = torch.arange(len(z), device=z.device)
    of_pictures, of_texts = (F.cross_entropy(rows, own, reduction="sum") for rows in (z, z.T))
    return (of_pictures + of_texts) / 2


def sigmoid_loss(z: Float[Tensor, "pairs pairs"]) -> Float[Tensor, ""]:
    """`-Σ_ij log σ(y_ij z_ij)` with `y = 1` for a pair and -1 for all others.

    Zhai et al. 2023, eq. 1; in nats, summed over the pairs, which are on the diagonal.
    """
    return -F.logsigmoid(z * (2 * torch.eye(len(z), device=z.device) - 1)).sum()


LOSSES: dict[PairLoss, Callable[[Float[Tensor, "pairs pairs"]], Float[Tensor, ""]]] = {
    "softmax": softmax_loss,
    "sigmoid": sigmoid_loss,
}
"""The losses by their names."""

PROBABILITIES: dict[PairLoss, Callable[[Tensor], Tensor]] = {
    "softmax": lambda z: z.softmax(-1),
    "sigmoid": torch.sigmoid,
}
"""The probability of each text of a picture: one of all, or of each by itself."""


class ContrastiveHead(nn.Module):
    """`z_ij = s · u_iᵀ v_j + b` for each picture `i` and text `j`, with vectors of length one.

    `s = exp(logit_scale)`, which training by softmax keeps at most 100 (`keep_bounds`). Radford et
    al. 2021 (CLIP), fig. 3, where `b = 0`; Zhai et al. 2023 (SigLIP), algorithm 1, which has no
    such limit: published scales are above it. `text` makes the vector of a text from its hidden
    states; the encoder of pictures has such a head of its own.
    """

    def __init__(
        self, text: VectorHead, *, loss: PairLoss, log_scale: float, bias: float | None
    ) -> None:
        super().__init__()
        self.text = text
        self.loss: PairLoss = loss
        self.logit_scale = nn.Parameter(torch.tensor(log_scale))
        self.logit_bias = None if bias is None else nn.Parameter(torch.tensor(bias))

    def forward(
        self, pictures: Float[Tensor, "pictures width"], texts: Float[Tensor, "texts width"]
    ) -> Float[Tensor, "pictures texts"]:
        logits = self.logit_scale.exp() * (unit(pictures) @ unit(texts).T)
        return logits if self.logit_bias is None else logits + self.logit_bias

    @torch.no_grad()
    def keep_bounds(self) -> None:
        """Limit a learned scale to 100, as softmax training does after each step.

        The stored number is bounded, not the one in use, which would have no gradient above it.
        """
        if self.loss == "softmax" and self.logit_scale.requires_grad:
            self.logit_scale.clamp_(max=math.log(MOST_SCALE))

    def loss_sum(
        self,
        outputs: Float[Tensor, "pictures texts"],
        targets: Int[Tensor, " pairs"],
        valid: Bool[Tensor, "rows positions"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of pairs (see `LOSSES`); text `targets[i]` belongs to picture `i`.

        Raises `InputError` for other numbers of pictures and texts.
        """
        if not outputs.shape[0] == outputs.shape[1] == targets.shape[0]:
            raise InputError(
                f"{outputs.shape[0]} pictures and {outputs.shape[1]} texts: a batch has as many of "
                "both"
            )
        return LOSSES[self.loss](at_least_float32(outputs)[:, targets])


@config
class ContrastiveHeadConfig:
    """How well pictures and texts fit together, by the cosine of their vectors (CLIP, SigLIP)."""

    task: ClassVar[str] = "contrastive"
    joint_loss: ClassVar[bool] = True

    kind: Literal["contrastive"] = "contrastive"
    text: VectorHeadConfig = VectorHeadConfig(pooling="last", width=512)
    """How a text becomes one vector: its width is that of the vectors of pictures."""
    loss: PairLoss = "softmax"
    """The target of learning: which text of a batch is that of a picture and the other way round
    (softmax, CLIP), or of each picture and text whether they are a pair (sigmoid, SigLIP).
    """
    log_scale: float = 2.6592
    """The logarithm of what cosines are multiplied by when training starts: log(1/0.07) in CLIP;
    in SigLIP it is log(10) = 2.3026.
    """
    bias: float | None = None
    """The number added to every logit when training starts, -10 in SigLIP; by default nothing."""

    def build(self, d_model: int) -> ContrastiveHead:
        return ContrastiveHead(
            self.text.build(d_model, 0), loss=self.loss, log_scale=self.log_scale, bias=self.bias
        )
