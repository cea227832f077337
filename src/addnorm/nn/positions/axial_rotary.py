"""Rotary positions of the patches of a picture, by row and column (DINOv3)."""

from math import tau
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.functional import wide_dtype
from addnorm.nn.positions.position import BuildContext, Position, not_a_dot_product, placed
from addnorm.nn.positions.rotary import turn_half
from addnorm.nn.positions.sinusoidal import in_float64
from addnorm.nn.splits import Splits
from addnorm.nn.types import Keys, Length, Queries


class AxialRotary(Position):
    """`q ← R q`, `k ← R k`, where `R` rotates half of the pairs of features by row, half by column.

    A patch of a picture of `R × C` patches lies at `y = (2r + 1)/R - 1`, `x = (2c + 1)/C - 1`. With
    `ω_i = 2π θ^(-4i/d_head)`, pairs `i < d_head/4` turn by `y ω_i`, the next as many by `x ω_i`; a
    pair is half a head apart. Coordinates within [-1, 1] for pictures of any size and shape:
    Siméoni et al. 2025 (arXiv 2508.10104), §3.2, after the axial RoPE of Heo et al. 2024, §3.2.
    Tokens before the patches are not rotated.
    """

    splits: ClassVar[Splits] = {}

    def __init__(self, frequencies: Float[Tensor, " quarter"]) -> None:
        super().__init__()
        # Not a buffer: must not be cast to bfloat16 with the model.
        self.frequencies = placed(frequencies)

    def rotate(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        if ctx.grid is None:
            return q, k
        angles = self.angles(ctx.grid, q.device)
        cos, sin = (
            wave.to(wide_dtype(q.dtype)).to(q.device) for wave in (angles.cos(), angles.sin())
        )
        return self._turned(q, cos, sin), self._turned(k, cos, sin)

    def angles(
        self, grid: tuple[Length, Length], device: torch.device
    ) -> Float[Tensor, "patches half"]:
        """The angles of each pair of features at each patch, row by row, in float64."""
        y, x = (_centres(n, device) for n in grid)
        places = torch.cartesian_prod(y, x)
        return (places[..., None] * self.frequencies.to(places.device)).flatten(1)

    def _turned(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        before = x.shape[2] - cos.shape[0]
        turned = turn_half(x[:, :, before:], cos, sin)
        return torch.cat([x[:, :, :before], turned], dim=2)


def _centres(n: Length, device: torch.device) -> Float[Tensor, " n"]:
    """The centres of `n` patches side by side that fill [-1, 1]."""
    return (2 * in_float64(torch.arange(n, device=device)) + 1) / n - 1


@config
class AxialRotaryConfig:
    """Rotary positions of the patches of a picture, by row and column within [-1, 1].

    `theta` is the base of the frequencies `2π θ^(-4i/d_head)`.
    """

    kind: Literal["axial_rotary"] = "axial_rotary"
    theta: Annotated[float, Field(gt=1.0)] = 100.0
    """The base θ of the frequencies."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """No examples here: it is for pictures, and is tested with them."""
        return {}

    def conflict(self, around: BuildContext) -> str | None:
        """A head must divide into four, the score be a dot product, and the input a picture."""
        if not around.pictures:
            return (
                "axial rotary positions are rows and columns of a picture: they need model.kind = "
                "'encoder' with model.input.kind = 'patches' or 'convolutions'"
            )
        if around.d_head % 4:
            nearest = max(4, 4 * round(around.d_head / 4))
            return (
                "axial rotary positions turn pairs by row and by column: d_head = "
                f"{around.d_head} must be a multiple of 4, such as {nearest}"
            )
        return not_a_dot_product("axial rotary", around)

    def build(self, build_context: BuildContext) -> AxialRotary:
        quarter = torch.arange(build_context.d_head // 4, dtype=torch.float64, device="cpu")
        return AxialRotary(tau * self.theta ** (-4 * quarter / build_context.d_head))
