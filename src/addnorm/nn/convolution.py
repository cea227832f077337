"""Convolution over time as a token mixer, in place of attention."""

from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.feedforward import ACTIVATIONS, Activation
from addnorm.nn.linear import Linear
from addnorm.nn.masks import Full, Mask
from addnorm.nn.positions.position import Position
from addnorm.nn.recurrent import Compacted, StateCache
from addnorm.nn.types import Hidden


class Convolution(nn.Module):
    """`act(concat_k(b_k + Σ_o x_{t+o} W_{k,o})) W_o` over the offsets `o` of each kernel size `k`.

    Causal: `-k < o ≤ 0`; otherwise centred: `-⌊k/2⌋ ≤ o < ⌈k/2⌉`, so that an even kernel has one
    more tap on the left. `L` causal layers of width `k` reach `L (k - 1) + 1` tokens. A convolution
    of every channel with every other (Gehring et al. 2017, §3.1, with an activation for their gated
    linear unit); several sizes side by side as in Kim 2014, §2. Offsets are places in the token's
    own text: beyond its ends, also where another text follows, a tap sees zero. The output at
    padding is zero. Raises `ValueError` for a cache of a centred convolution, whose later tokens
    change the outputs of earlier ones.
    """

    pattern: Mask = Full()
    output_weights = ("out_proj",)
    deepnorm_weights = ("out_proj",)

    def __init__(
        self,
        d_model: int,
        kernel_sizes: tuple[int, ...],
        *,
        causal: bool,
        activation: Activation = "relu",
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.conv = nn.ModuleList(nn.Conv1d(d_model, d_model, k, bias=bias) for k in kernel_sizes)
        self.taps = [(k - 1, 0) if causal else (k // 2, (k - 1) // 2) for k in kernel_sizes]
        self.left = max(left for left, _ in self.taps)
        self.right = max(right for _, right in self.taps)
        self.activation = ACTIVATIONS[activation]
        self.out_proj = Linear(len(kernel_sizes) * d_model, d_model, bias=bias)

    def forward(self, x: Hidden, ctx: Context, cache: StateCache | None = None) -> Hidden:
        if cache is not None and not self.causal:
            raise ValueError("a centred convolution has no use for a cache: it looks ahead")
        if not x.numel():
            return x
        past = self.new_cache().state(x) if cache is None else cache.state(x)
        rows = Compacted.of(ctx)
        ahead = x.new_zeros(len(x), self.right, x.shape[2])
        line = torch.cat([rows.before(past), rows.gather(x), ahead], dim=1)
        text = rows.texts(self.left, self.right) if ctx.several else None
        y = rows.scatter(self.out_proj(self.convolve(line, text)))
        if cache is not None:
            cache.keep(rows.after(past, rows.last(line, text, self.left)))
        return y

    def convolve(
        self, line: Float[Tensor, "batch line d_model"], text: Int[Tensor, "batch line"] | None
    ) -> Float[Tensor, "batch seq width"]:
        """`act(concat_k(…))` for all tokens but the first `left` and last `right`.

        Where `text` tells several texts of a row apart, a tap sees zero beyond its own.
        """
        size = line.shape[1]
        maps = list[Tensor]()
        for conv, (left, right) in zip(self.conv, self.taps, strict=True):
            assert isinstance(conv, nn.Conv1d)
            reach = slice(self.left - left, size - self.right + right)
            maps.append(
                tapped(conv, line[:, reach], None if text is None else text[:, reach], left)
            )
        return self.activation(torch.cat(maps, dim=-1))

    def new_cache(self) -> StateCache:
        """An empty cache for the inputs that the next token's kernel still covers."""
        return StateCache(self.left, self.out_proj.out_features)


def tapped(
    conv: nn.Conv1d,
    line: Float[Tensor, "batch line d_model"],
    text: Int[Tensor, "batch line"] | None,
    left: int,
) -> Float[Tensor, "batch seq width"]:
    """`b + Σ_o x_{t+o} W_o` for all tokens but the first `left`, and the last that a kernel spans.

    Where `text` tells several texts of a row apart, a tap sees zero beyond its own.
    """
    if text is None:
        return conv(line.mT).mT
    windows, texts = (each.unfold(1, conv.kernel_size[0], 1) for each in (line, text))
    apart = texts != texts[..., left, None]
    windows = windows.masked_fill(apart[:, :, None], 0.0)
    return F.linear(windows.flatten(2), conv.weight.flatten(1), conv.bias)


@config
class ConvolutionConfig:
    """`kernel_size` may be several, as in `[3, 4, 5]`: each gives d_model features, then joined.

    Positions are left to the taps.
    """

    kind: Literal["convolution"] = "convolution"
    kernel_size: PositiveInt | Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = 3
    """Tokens that a kernel spans; several kernels give d_model features each, then joined."""
    activation: Activation = "relu"
    """The nonlinearity after the convolution."""
    bias: bool = True
    """Whether the kernels and the output projection have biases."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """One kernel size, and several in parallel."""
        return {
            "convolution": cls(),
            "convolutions": cls(kernel_size=(2, 4), activation="gelu", bias=False),
        }

    def build(self, d_model: int, position: Position, causal: bool, layer: int = 0) -> Convolution:
        sizes = self.kernel_size if isinstance(self.kernel_size, tuple) else (self.kernel_size,)
        return Convolution(
            d_model, sizes, causal=causal, activation=self.activation, bias=self.bias
        )
