"""Sinusoidal positions: fixed waves added to the embeddings, at any length."""

from typing import Literal

import torch
from jaxtyping import Float, Int
from pydantic import PositiveFloat
from torch import Tensor

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.positions.none import NoPosition
from addnorm.nn.positions.position import Embedded, Position


def frequencies(width: int, theta: float = 10000.0) -> Float[Tensor, " half"]:
    """`ω_i = θ^(-2i/width)` for `i = 0 … width/2 - 1`, in float64, radians per position."""
    return theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)


def phases(
    positions: Int[Tensor, "*batch seq"], width: int, theta: float = 10000.0
) -> Float[Tensor, "*batch seq half"]:
    """The angles `p ω_i` in float64, so that their sines are exact far beyond any context."""
    return positions[..., None].double() * frequencies(width, theta).to(positions.device)


def sinusoidal_encoding(
    positions: Int[Tensor, "*batch seq"], d_model: int, theta: float = 10000.0
) -> Float[Tensor, "*batch seq d_model"]:
    """`PE(p, 2i) = sin(p ω_i)`, `PE(p, 2i+1) = cos(p ω_i)` (Vaswani et al. 2017, §3.5), float32."""
    angles = phases(positions, d_model, theta)
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
    return waves[..., :d_model].float()


class Sinusoidal(Position):
    """Adds `PE(p)` to the embeddings. Keeps no table: every position is computed when it comes."""

    def __init__(self, *, theta: float = 10000.0) -> None:
        super().__init__()
        self.theta = theta

    def embed(self, x: Embedded, ctx: Context) -> Embedded:
        return x + sinusoidal_encoding(ctx.positions, x.shape[-1], self.theta).to(x.dtype)

    def in_layer(self, layer: int) -> Position:
        return NoPosition()


@config
class SinusoidalConfig:
    """`theta` is the longest wavelength divided by 2π."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    theta: PositiveFloat = 10000.0

    def build(self, d_model: int, max_len: int) -> Sinusoidal:
        return Sinusoidal(theta=self.theta)
