"""A convolution next to a layer, whose output joins that of the layer (DeBERTa v2)."""

import torch
from pydantic import PositiveInt
from torch import nn

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.convolution import tapped
from addnorm.nn.dropout import Dropout
from addnorm.nn.feedforward import ACTIVATIONS, Activation
from addnorm.nn.norms import NormConfig, build_norm
from addnorm.nn.recurrent import Compacted
from addnorm.nn.types import Hidden


class LayerConvolution(nn.Module):
    """`norm(y + act(drop(b + Σ_o x_{t+o} W_o)))`, where a layer reads `x` and returns `y`.

    The offsets are `-⌊k/2⌋ ≤ o ≤ ⌊k/2⌋`, of an odd `k`: places in the token's own text, beyond
    whose ends a tap sees zero. DeBERTa v2 of 900 and 1500 million parameters (He et al. 2021,
    §5.1, and their code); padding has no part in it.
    """

    def __init__(
        self,
        d_model: int,
        kernel_size: int,
        norm: nn.Module,
        dropout: float = 0.0,
        *,
        activation: Activation = "gelu",
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(d_model, d_model, kernel_size)
        self.reach = kernel_size // 2
        self.activation = ACTIVATIONS[activation]
        self.dropout = Dropout(dropout)
        self.norm = norm

    def forward(self, x: Hidden, y: Hidden, ctx: Context) -> Hidden:
        if not x.numel():
            return y
        rows = Compacted.of(ctx)
        around = x.new_zeros(len(x), self.reach, x.shape[2])
        line = torch.cat([around, rows.gather(x), around], dim=1)
        text = rows.texts(self.reach, self.reach) if ctx.several else None
        convolved = rows.scatter(tapped(self.conv, line, text, self.reach))
        return self.norm(y + self.activation(self.dropout(convolved)), ctx.valid)


@config
class LayerConvolutionConfig:
    """A convolution of every feature with every other, over neighbouring tokens."""

    kernel_size: PositiveInt = 3
    """Tokens that the kernel spans, as many before a token as after it: an odd number."""
    activation: Activation = "gelu"
    """The nonlinearity after the convolution."""

    def __post_init__(self) -> None:
        if self.kernel_size % 2 == 0:
            raise ValueError(
                f"kernel_size = {self.kernel_size} must be odd, so that the kernel is centred: "
                f"{self.kernel_size - 1} or {self.kernel_size + 1}"
            )

    def build(self, d_model: int, norm: NormConfig, dropout: float) -> LayerConvolution:
        return LayerConvolution(
            d_model,
            self.kernel_size,
            build_norm(norm, d_model),
            dropout,
            activation=self.activation,
        )
