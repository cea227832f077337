"""A short causal convolution of each channel alone, and the mixer that gates it (LFM2)."""

from typing import Any, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.linear import Linear
from addnorm.nn.masks import Full, Mask
from addnorm.nn.positions.position import Position
from addnorm.nn.recurrent import Compacted, StateCache
from addnorm.nn.types import Hidden

Channels = Float[Tensor, "batch seq width"]


class ShortConvolution(nn.Module):
    """`y_t = b + Σ_o w_o ⊙ x_{t-o}` over the offsets `0 ≤ o < k`: each channel alone.

    Offsets are places in the token's own text: before its first token, a tap sees zero.
    """

    def __init__(self, width: int, kernel_size: int, *, bias: bool) -> None:
        super().__init__()
        self.conv = nn.Conv1d(width, width, kernel_size, groups=width, bias=bias)
        self.left = kernel_size - 1

    def forward(
        self, x: Channels, rows: Compacted, *, several: bool, cache: StateCache | None = None
    ) -> Channels:
        """The convolution of tokens that `rows` has gathered, with zero at padding.

        `several` says that a row may hold several texts.
        """
        past = self.new_cache().state(x) if cache is None else cache.state(x)
        line = torch.cat([rows.before(past).to(x.dtype), x], dim=1)
        text = rows.texts(self.left) if several else None
        if text is None:
            y = self.conv(line.mT).mT
        else:
            windows, texts = (each.unfold(1, self.left + 1, 1) for each in (line, text))
            apart = texts != texts[..., -1:]
            y = (windows.masked_fill(apart[:, :, None], 0.0) * self.conv.weight[:, 0]).sum(-1)
            y = y if self.conv.bias is None else y + self.conv.bias
        if cache is not None:
            cache.keep(rows.after(past, rows.last(line, text, self.left)))
        return y

    def new_cache(self) -> StateCache:
        """An empty cache for the inputs that the next token's kernel still covers."""
        return StateCache(self.left, self.conv.out_channels)


class GatedConvolution(nn.Module):
    """`(c ⊙ conv(b ⊙ h)) W_o`, `b = x W_b`, `c = x W_c`, `h = x W_h`: a gated short convolution.

    Liquid AI 2025 (LFM2, 2511.23404). `conv` is a `ShortConvolution`; it looks back alone, in an
    encoder too. The output at padding is zero.
    """

    pattern: Mask = Full()
    output_weights = ("out_proj",)
    deepnorm_weights = ("out_proj",)

    def __init__(self, d_model: int, kernel_size: int, *, bias: bool) -> None:
        super().__init__()
        self.in_gate_proj = Linear(d_model, d_model, bias=bias)
        self.out_gate_proj = Linear(d_model, d_model, bias=bias)
        self.in_proj = Linear(d_model, d_model, bias=bias)
        self.short = ShortConvolution(d_model, kernel_size, bias=bias)
        self.out_proj = Linear(d_model, d_model, bias=bias)

    def forward(self, x: Hidden, ctx: Context, cache: StateCache | None = None) -> Hidden:
        if not x.numel():
            return x
        rows = Compacted.of(ctx)
        tokens = rows.gather(x)
        inputs = self.in_gate_proj(tokens) * self.in_proj(tokens)
        if rows.order is not None:
            inputs = inputs.masked_fill(~rows.real[..., None], 0.0)
        mixed = self.short(inputs, rows, several=ctx.several, cache=cache)
        return rows.scatter(self.out_proj(self.out_gate_proj(tokens) * mixed))

    def new_cache(self) -> StateCache:
        """An empty cache for the inputs that the next token's kernel still covers."""
        return self.short.new_cache()


@config
class GatedConvolutionConfig:
    """A gated convolution of each feature alone, over the last few tokens.

    Positions are left to the taps.
    """

    kind: Literal["gated_convolution"] = "gated_convolution"
    kernel_size: PositiveInt = 3
    """Tokens that the kernel spans, the token itself included."""
    bias: bool = False
    """Whether the projections and the kernel have biases."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Three taps, and four with biases."""
        return {
            "gated_convolution": cls(),
            "gated_convolution_with_bias": cls(kernel_size=4, bias=True),
        }

    def build(
        self, d_model: int, position: Position, causal: bool, layer: int = 0
    ) -> GatedConvolution:
        return GatedConvolution(d_model, self.kernel_size, bias=self.bias)
