"""Audio input: embeds log-mel frames as a sequence of half their length."""

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Bool, Float
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.dropout import Dropout
from addnorm.nn.patches import as_sequence, check_frames
from addnorm.nn.positions.position import Position
from addnorm.nn.types import Hidden


class LogMelEmbedding(nn.Module):
    """`drop(position(gelu(conv2(gelu(conv1(frames))))))`: a position for every second frame.

    Whisper (Radford et al. 2022, §2.2): convolutions of width 3, the second of stride 2.
    `position` is the model's own scheme, in Whisper the sinusoidal one. Padding is silenced before
    each convolution: a clip is embedded as if it were alone.

    Raises `InputError` for another number of mels, and for padding that is not on the right.
    """

    def __init__(
        self, d_model: int, *, n_mels: int, position: Position, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(n_mels, d_model, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(d_model, d_model, kernel_size=3, stride=2, padding=1)
        self.position = position
        self.dropout = Dropout(dropout)

    def forward(
        self,
        frames: Float[Tensor, "batch n_mels frames"],
        valid: Bool[Tensor, "batch frames"] | None = None,
    ) -> tuple[Hidden, Context]:
        """Embed the frames and build their context; `valid` marks the real frames."""
        check_frames(frames, self.conv1.in_channels, valid)
        dtype = self.conv1.weight.dtype
        x = F.gelu(self.conv1(_silenced(frames.to(dtype), valid)))
        x = F.gelu(self.conv2(_silenced(x, valid))).transpose(1, 2).to(dtype)
        shorter = None if valid is None else self.valid_positions(valid)
        return as_sequence(x, self.position, self.dropout, shorter)

    def valid_positions(self, valid: Bool[Tensor, "batch frames"]) -> Bool[Tensor, "batch seq"]:
        """Which output positions are real: position `i` is real if frame `2 i` is."""
        return valid[:, ::2]


def _silenced(x: Tensor, valid: Tensor | None) -> Tensor:
    return x if valid is None else torch.where(valid[:, None], x, 0.0)


@config
class LogMelEmbeddingConfig:
    """Audio as `n_mels` log-mel features a frame."""

    kind: Literal["log_mel"] = "log_mel"
    n_mels: PositiveInt = 80
    """Mel features of a frame."""

    def n_positions(self, size: Sequence[int]) -> int:
        """The number of positions that a clip of this many frames takes."""
        return (size[-1] + 1) // 2

    def build(self, d_model: int, position: Position, dropout: float) -> LogMelEmbedding:
        return LogMelEmbedding(d_model, n_mels=self.n_mels, position=position, dropout=dropout)
