"""Rotary position embedding (RoPE): queries and keys are rotated by angles of their positions."""

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.functional import wide_dtype
from addnorm.nn.positions.position import BuildContext, Position, not_a_dot_product, placed
from addnorm.nn.positions.scaling import (
    DynamicScaling,
    LengthScaling,
    LongRoPEScaling,
    ScalingConfig,
    scaling_examples,
)
from addnorm.nn.positions.sinusoidal import frequencies, waves
from addnorm.nn.splits import Splits
from addnorm.nn.types import Keys, Queries

Turned = Float[Tensor, "*batch seq width"]
Waves = Float[Tensor, "*#batch seq half"]
Turn = Callable[[Tensor, Tensor, Tensor], Tensor]


def turn_half(x: Turned, cos: Waves, sin: Waves) -> Turned:
    """Rotate each pair `(x_i, x_{i + half})` counter-clockwise; other features are unchanged."""
    half = cos.shape[-1]
    a, b, rest = x.tensor_split((half, 2 * half), dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos, rest), dim=-1).to(x.dtype)


def turn_interleaved(x: Turned, cos: Waves, sin: Waves) -> Turned:
    """Rotate each pair `(x_{2i}, x_{2i+1})` counter-clockwise; other features are unchanged."""
    turning, rest = x.tensor_split((2 * cos.shape[-1],), dim=-1)
    a, b = turning.unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)
    return torch.cat((turned, rest), dim=-1).to(x.dtype)


LAYOUTS: dict[str, Turn] = {
    # LLaMA, GPT-NeoX: a pair is half the rotated width apart.
    "half": turn_half,
    # RoFormer (Su et al. 2021, eq. 34), GPT-J: a pair is two neighbours.
    "interleaved": turn_interleaved,
}

Layout = Literal["half", "interleaved"]


class Rotary(Position):
    """`q ← R_p q`, `k ← R_p k` where `R_p` rotates pair `i` by `p ω_i` (Su et al. 2021, §3.2.2).

    Turns the first `2 · len(frequencies)` features of a head and leaves the others. Angles are
    float64, their sines and cosines never below float32, whatever the model's type. `temperature`
    multiplies the rotated features (YaRN: Peng et al. 2024, §3.4).
    """

    splits: ClassVar[Splits] = {}

    def __init__(
        self,
        frequencies: Float[Tensor, " half"],
        *,
        layout: Layout = "half",
        temperature: float = 1.0,
    ) -> None:
        super().__init__()
        # Not a buffer: must not be cast to bfloat16 with the model.
        self.frequencies = placed(frequencies)
        self.turn = LAYOUTS[layout]
        self.temperature = temperature

    def rotate(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        positions = ctx.kv_positions[:, -k.shape[2] :]
        cos, sin = waves(positions, self.frequencies, wide_dtype(q.dtype))
        return _turned(self.turn, q, k, cos * self.temperature, sin * self.temperature)


class DynamicRotary(Position):
    """Rotary positions whose frequencies depend on the text's length (`DynamicScaling`, LongRoPE).

    Each text uses its own length, even if others are packed into the same row. Keys enter the cache
    unrotated and are rotated after it, all with the frequencies of the current pass, so that
    attention over the same keys is the same with and without a cache. Past `original_max_len` that
    holds for one layer only: a pass over the whole text rotates its earlier tokens by the final
    length, while the cached states of deeper layers were computed at the length of their time.
    """

    splits: ClassVar[Splits] = {}

    def __init__(
        self, width: int, *, theta: float, scaling: LengthScaling, layout: Layout = "half"
    ) -> None:
        super().__init__()
        self.width = width
        self.theta = theta
        self.scaling = scaling
        self.constants = placed(scaling.constants(width, theta))
        self.turn = LAYOUTS[layout]

    def rotate_all(self, q: Queries, k: Keys, ctx: Context) -> tuple[Queries, Keys]:
        lengths = text_lengths(ctx.kv_positions, ctx.kv_valid, ctx.order)
        current = self.scaling.frequencies(self.constants, lengths)
        cos, sin = waves(ctx.kv_positions, current, wide_dtype(q.dtype))
        factor = self.scaling.temperature
        return _turned(self.turn, q, k, cos * factor, sin * factor)


def text_lengths(
    positions: Int[Tensor, "#batch seq"],
    valid: Bool[Tensor, "batch seq"] | None = None,
    order: Int[Tensor, " seq"] | None = None,
) -> Int[Tensor, "rows seq"]:
    """The current length of the text that each slot belongs to.

    Every real token at position 0 begins a text, and padding belongs to the text before it. Slots
    that do not follow each other do so by `order`.
    """
    if order is not None:
        valid = None if valid is None else valid[:, order]
        return text_lengths(positions[:, order], valid)[:, order.argsort()]
    begins = positions == 0 if valid is None else (positions == 0) & valid
    text = begins.long().cumsum(-1)
    rows, n = text.shape
    last = positions.new_zeros(rows, n + 1)  # what precedes the first beginning is text 0
    last = last.scatter_reduce(1, text, positions.expand_as(text), "amax")
    return last.gather(1, text) + 1


def _turned(
    turn: Turn,
    q: Queries,
    k: Keys,
    cos: Float[Tensor, "#batch kv_seq half"],
    sin: Float[Tensor, "#batch kv_seq half"],
) -> tuple[Queries, Keys]:
    """Rotate each key by its position, and the queries by the positions of the last keys."""
    cos, sin, new = cos[:, None], sin[:, None], slice(-q.shape[2], None)
    return turn(q, cos[:, :, new], sin[:, :, new]), turn(k, cos, sin)


@config
class RotaryConfig:
    """`theta` is the base of the frequencies `θ^(-2i/width)`, in LLaMA-3 500,000.

    `fraction` is the rotated share of every head; GPT-J and GPT-NeoX leave the rest unrotated.
    """

    kind: Literal["rotary"] = "rotary"
    theta: Annotated[float, Field(gt=1.0)] = 10000.0
    """The base θ of the frequencies `θ^(-2i/width)`; LLaMA-3 has 500,000."""
    layout: Layout = "half"
    """Which features are rotated as a pair: one of each half, or neighbours."""
    fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """The share of each head's features that is rotated; below 1 in GPT-J and GPT-NeoX."""
    scaling: ScalingConfig | None = None
    """How frequencies are changed for longer texts; by default not."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Both layouts, a partial rotation, and every scaling, for texts of more than 3 tokens."""
        return {
            "rotary": cls(),
            "rotary_interleaved": cls(layout="interleaved"),
            "rotary_half_of_a_head": cls(fraction=0.5),
            **{
                f"rotary_{name}": cls(theta=2.0, scaling=scaling)
                for name, scaling in scaling_examples().items()
            },
        }

    def conflict(self, around: BuildContext) -> str | None:
        """The rotated width must be even, and the score a dot product."""
        try:
            width = self.width(around.d_head)
            if isinstance(self.scaling, LongRoPEScaling):
                self.scaling.check_width(width)
        except ValueError as error:
            return str(error)
        return not_a_dot_product("rotary", around)

    def width(self, d_head: int) -> int:
        """The number of rotated features of a head. Raises `ValueError` if it is not even."""
        width = self.fraction * d_head
        nearest = min(max(2, 2 * round(width / 2)), d_head - d_head % 2)
        if nearest == 0 or abs(width - nearest) > 1e-6:
            valid = (
                f"fraction = {nearest / d_head:.6g} turns {nearest}" if nearest else "d_head = 2"
            )
            raise ValueError(
                f"rotary positions turn pairs: fraction = {self.fraction:g} of d_head = {d_head} "
                f"turns {width:g} features, which must be even; the nearest is {valid}"
            )
        return nearest

    def build(self, build_context: BuildContext) -> Rotary | DynamicRotary:
        width = self.width(build_context.d_head)
        match self.scaling:
            case None:
                return Rotary(frequencies(width, self.theta), layout=self.layout)
            case DynamicScaling() | LongRoPEScaling() as scaling:
                return DynamicRotary(width, theta=self.theta, scaling=scaling, layout=self.layout)
            case scaling:
                return Rotary(
                    scaling.frequencies(width, self.theta),
                    layout=self.layout,
                    temperature=scaling.temperature,
                )
