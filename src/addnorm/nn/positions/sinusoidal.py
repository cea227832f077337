"""Sinusoidal position encoding: fixed, added to the embeddings, for any length."""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import NonNegativeInt, PositiveFloat
from torch import Tensor

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.positions.position import BuildContext, NoPosition, Position
from addnorm.nn.types import Hidden

Layout = Literal["interleaved", "halves"]


def frequencies(
    width: int, theta: float = 10000.0, device: torch.device | str = "cpu"
) -> Float[Tensor, " half"]:
    """`ω_i = θ^(-2i/width)` for `i = 0 … width/2 - 1`, in float64, radians per position."""
    return theta ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)


def waves(
    positions: Int[Tensor, "*batch seq"],
    frequencies: Float[Tensor, "*#places half"],
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "*batch seq half"], Float[Tensor, "*batch seq half"]]:
    """`cos(p ω_i)` and `sin(p ω_i)`, accurate in `dtype` at any practical context length.

    The angles are float64: at position 131,071 a float32 angle is off by up to 0.004.
    """
    exact = in_float64(positions)
    angles = exact[..., None] * frequencies.to(exact.device)
    device = positions.device
    return angles.cos().to(dtype).to(device), angles.sin().to(dtype).to(device)


def in_float64(x: Int[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """`x` in float64, moved to the CPU if the device lacks float64 (Apple's MPS)."""
    return (x.cpu() if x.device.type == "mps" else x).double()


def sinusoidal_encoding(
    positions: Int[Tensor, "*batch seq"],
    d_model: int,
    theta: float = 10000.0,
    dtype: torch.dtype = torch.float32,
    layout: Layout = "interleaved",
) -> Float[Tensor, "*batch seq d_model"]:
    """`PE(p, 2i) = sin(p ω_i)`, `PE(p, 2i+1) = cos(p ω_i)` (Vaswani et al. 2017, §3.5)."""
    cos, sin = waves(positions, frequencies(d_model, theta, in_float64(positions).device), dtype)
    if layout == "halves":
        return torch.cat((sin, cos), dim=-1)[..., :d_model]
    return torch.stack((sin, cos), dim=-1).flatten(-2)[..., :d_model]


class Sinusoidal(Position):
    """`x + PE(p)` with `PE(p, 2i) = sin(p ω_i)`, `PE(p, 2i+1) = cos(p ω_i)`.

    Vaswani et al. 2017, §3.5. Keeps no table: positions are computed as they come. In the
    layout "halves" all sines come first, then all cosines: the same features in another order.
    `first` is the position of the first token.
    """

    def __init__(
        self, *, theta: float = 10000.0, layout: Layout = "interleaved", first: int = 0
    ) -> None:
        super().__init__()
        self.theta = theta
        self.layout: Layout = layout
        self.first = first or None

    def embed(self, x: Hidden, ctx: Context) -> Hidden:
        places = ctx.positions if self.first is None else ctx.positions + self.first
        return x + sinusoidal_encoding(places, x.shape[-1], self.theta, x.dtype, self.layout)

    def in_layer(self, layer: int) -> Position:
        return NoPosition()


@config
class SinusoidalConfig:
    """`theta` is the longest wavelength divided by 2π; `layout = "halves"` is Marian's."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    theta: PositiveFloat = 10000.0
    """The longest wavelength in tokens, divided by 2π."""
    layout: Layout = "interleaved"
    """Whether sines and cosines alternate, or sines stand in the first half (Marian)."""
    first: NonNegativeInt = 0
    """The position of the first token; 2 in M2M100."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Both layouts, and a later first position."""
        return {
            "sinusoidal": cls(),
            "sinusoidal_halves": cls(layout="halves", theta=100.0, first=2),
        }

    def build(self, build_context: BuildContext) -> Sinusoidal:
        return Sinusoidal(theta=self.theta, layout=self.layout, first=self.first)
