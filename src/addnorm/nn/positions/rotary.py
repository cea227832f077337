"""Rotary positions (RoPE): queries and keys turn, so that scores see the offset alone."""

from typing import Literal

import torch
from jaxtyping import Float
from pydantic import PositiveFloat
from torch import Tensor

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.positions.position import Keys, Position, Queries
from addnorm.nn.positions.sinusoidal import phases


def turn(
    x: Float[Tensor, "*batch seq d_head"],
    cos: Float[Tensor, "*#batch seq half"],
    sin: Float[Tensor, "*#batch seq half"],
) -> Float[Tensor, "*batch seq d_head"]:
    """Turn each pair `(x_i, x_{i + d/2})` counter-clockwise (Su et al. 2021, eq. 34)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


class Rotary(Position):
    """`q ← R_p q`, `k ← R_p k` where `R_p` turns pair `i` by `p θ^(-2i/d_head)` (Su et al. 2021).

    Pairs are `(i, i + d_head/2)`, as in LLaMA. Angles are exact in float64 and their sines and
    cosines are never below float32, whatever the model's type. Raises `ValueError` for an odd
    head width.
    """

    def __init__(self, *, theta: float = 10000.0) -> None:
        super().__init__()
        self.theta = theta

    def rotate(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        if q.shape[-1] % 2:
            raise ValueError(f"rotary positions turn pairs: d_head must be even, got {q.shape[-1]}")
        angles = phases(ctx.positions, q.shape[-1], self.theta)[:, None]
        wide = torch.promote_types(q.dtype, torch.float32)
        cos, sin = angles.cos().to(wide), angles.sin().to(wide)
        return turn(q, cos, sin), turn(k, cos, sin)


@config
class RotaryConfig:
    """`theta` is the base of the frequencies, in LLaMA-3 500,000."""

    kind: Literal["rotary"] = "rotary"
    theta: PositiveFloat = 10000.0

    def build(self, d_model: int, max_len: int) -> Rotary:
        return Rotary(theta=self.theta)
