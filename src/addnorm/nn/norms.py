"""Normalisation: LayerNorm and RMSNorm, statistics in float32 whatever the input's type."""

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config


class LayerNorm(nn.Module):
    """`γ (x - μ) / √(σ² + ε) + β` over the features of each token.

    Ba et al. 2016, eq. 3; biased variance, ε inside the root. `bias=False` leaves β out.
    """

    def __init__(self, d_model: int, *, eps: float = 1e-5, bias: bool = True) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model)) if bias else None

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        weight = self.weight.to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.layer_norm(x, weight.shape, weight, bias, self.eps)


@config
class LayerNormConfig:
    """`bias = false` leaves β out."""

    kind: Literal["layernorm"] = "layernorm"
    eps: PositiveFloat = 1e-5
    bias: bool = True

    def build(self, d_model: int) -> LayerNorm:
        return LayerNorm(d_model, eps=self.eps, bias=self.bias)


class RMSNorm(nn.Module):
    """`γ x / √(mean(x²) + ε)` over the features of each token (Zhang & Sennrich 2019, eq. 4)."""

    def __init__(self, d_model: int, *, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(d_model))

    def forward(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


@config
class RMSNormConfig:
    """A norm without mean and bias."""

    kind: Literal["rmsnorm"] = "rmsnorm"
    eps: PositiveFloat = 1e-6

    def build(self, d_model: int) -> RMSNorm:
        return RMSNorm(d_model, eps=self.eps)


NormConfig = Annotated[LayerNormConfig | RMSNormConfig, Field(discriminator="kind")]
"""Every norm there is."""
