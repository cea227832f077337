"""The CTC head: the symbols of a text and a blank for every frame of a sound or an image."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import NonNegativeInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.functional import at_least_float32
from addnorm.nn.linear import Linear
from addnorm.nn.types import Hidden

BLANK = 0
"""The symbol of a frame in which nothing is written: the id of padding."""

IGNORED = -100
"""The target where nothing is to be predicted."""


class CTCHead(nn.Module):
    """`z_t = W x_t + b`: logits of the vocabulary and of a blank for every frame of a sound.

    A path has one symbol for each frame; without its blanks, and with one of each run of equal
    symbols, it is a text: `p(y | x) = Σ_paths of y Π_t softmax(z_t)_path_t` (Graves et al. 2006,
    eq. 3). The token `blank` is the blank.
    """

    def __init__(self, d_model: int, n_outputs: int, blank: int = BLANK) -> None:
        super().__init__()
        self.proj = Linear(d_model, n_outputs)
        self.blank = blank

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch frames vocab"]:
        return self.proj(x)

    def loss_sum(
        self,
        outputs: Float[Tensor, "batch frames vocab"],
        targets: Int[Tensor, "batch tokens"],
        valid: Bool[Tensor, "batch frames"] | None,
    ) -> Float[Tensor, ""]:
        """`-log p(y | x)`, summed over the texts, in nats.

        A text with more tokens than its sound has frames has no path: its loss is infinite. Two
        equal tokens that follow each other count as three, for the blank between them.
        """
        batch, n_frames = outputs.shape[:2]
        frames = (
            torch.full((batch,), n_frames, device=outputs.device) if valid is None else valid.sum(1)
        )
        return F.ctc_loss(
            at_least_float32(outputs).log_softmax(-1).transpose(0, 1),
            targets.clamp(min=0),
            frames,
            (targets != IGNORED).sum(1),
            blank=self.blank,
            reduction="sum",
        )


@config
class CTCHeadConfig:
    """The tokens of a transcript and a blank for every frame."""

    task: ClassVar[str] = "transcription"
    joint_loss: ClassVar[bool] = True
    predicts_tokens: ClassVar[bool] = True

    kind: Literal["ctc"] = "ctc"
    blank: NonNegativeInt = BLANK
    """The token of a frame in which nothing is written: by default that of padding."""

    def build(self, d_model: int, n_outputs: int) -> CTCHead:
        return CTCHead(d_model, n_outputs, self.blank)
