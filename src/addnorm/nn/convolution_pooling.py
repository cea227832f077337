"""Pooling by convolutions: the largest answer of each filter, wherever in the text it stands."""

from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn.feedforward import ACTIVATIONS, Activation
from addnorm.nn.types import Hidden


class ConvolutionPooling(nn.Module):
    """`concat_k max_t act(b_k + Σ_{o<k} W_{k,o} x_{t+o})` over the windows of `k` tokens.

    Convolution and max-over-time pooling of Kim 2014, §2. A window may reach over either end of the
    text, where it sees zeros, as long as it holds a real token; his code pads all texts to one
    length and so sees windows of zeros alone, too. Zero where there is no real token.
    """

    def __init__(
        self,
        d_model: int,
        kernel_sizes: tuple[int, ...],
        channels: int,
        *,
        activation: Activation = "relu",
    ) -> None:
        super().__init__()
        self.conv = nn.ModuleList(nn.Conv1d(d_model, channels, k) for k in kernel_sizes)
        self.kernel_sizes = kernel_sizes
        self.activation = ACTIVATIONS[activation]

    def forward(
        self, x: Hidden, valid: Bool[Tensor, "batch seq 1"]
    ) -> Float[Tensor, "batch features"]:
        x, real = torch.where(valid, x, 0.0).mT, valid.mT
        found = [
            self._largest(
                conv, F.pad(x, (k - 1, k - 1)), F.pad(real, (k - 1, k - 1)).unfold(2, k, 1)
            )
            for conv, k in zip(self.conv, self.kernel_sizes, strict=True)
        ]
        return torch.where(real.any(2), torch.cat(found, dim=1), 0.0)

    def _largest(
        self,
        conv: nn.Module,
        line: Float[Tensor, "batch d_model line"],
        windows: Bool[Tensor, "batch 1 windows kernel"],
    ) -> Float[Tensor, "batch channels"]:
        """The largest answer of each filter over the windows that hold a real token."""
        answers = self.activation(conv(line))
        return torch.where(windows.any(3), answers, torch.finfo(answers.dtype).min).amax(2)


@config
class ConvolutionPoolingConfig:
    """Filters of several widths, and of each its largest answer (Kim 2014, §2).

    The text becomes a vector of `channels` features for each kernel size. With `n_layers = 0` this
    is Kim's classifier.
    """

    kind: Literal["convolution"] = "convolution"
    kernel_size: PositiveInt | Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (3, 4, 5)
    """Tokens that a filter spans; several sizes stand side by side."""
    channels: PositiveInt = 100
    """Filters of each size."""
    activation: Activation = "relu"
    """The nonlinearity after the convolution."""

    @property
    def kernel_sizes(self) -> tuple[int, ...]:
        """The kernel sizes, also where there is one."""
        return self.kernel_size if isinstance(self.kernel_size, tuple) else (self.kernel_size,)

    @property
    def width(self) -> int:
        """The size of the vector."""
        return len(self.kernel_sizes) * self.channels

    def build(self, d_model: int) -> ConvolutionPooling:
        return ConvolutionPooling(
            d_model, self.kernel_sizes, self.channels, activation=self.activation
        )
