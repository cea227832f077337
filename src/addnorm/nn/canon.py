"""Canon layers: a short convolution, with a residual, of what a sublayer reads (Allen-Zhu 2025)."""

from typing import Any, Literal

from jaxtyping import Int
from pydantic import PositiveInt
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.blocks import Block, CanonBlock, Mixer
from addnorm.nn.cache import Cache
from addnorm.nn.context import Context
from addnorm.nn.masks import Mask
from addnorm.nn.no_sublayer import NoFeedForward, NoMixer
from addnorm.nn.recurrent import Compacted, StateCache
from addnorm.nn.residuals import ParallelConfig
from addnorm.nn.short_convolution import ShortConvolution
from addnorm.nn.types import Hidden


class Canon(nn.Module):
    """`x_t + b + Σ_o w_o ⊙ x_{t-o}` over the offsets `0 ≤ o < k`: each feature alone.

    Allen-Zhu 2025 (Physics of Language Models, Part 4.1). Offsets are places in the token's own
    text: before its first token, a tap sees zero.
    """

    def __init__(self, d_model: int, kernel_size: int, *, bias: bool) -> None:
        super().__init__()
        self.short = ShortConvolution(d_model, kernel_size, bias=bias)

    def forward(self, x: Hidden, ctx: Context, cache: StateCache | None = None) -> Hidden:
        if not x.numel():
            return x
        rows = Compacted.of(ctx)
        return x + rows.scatter(self.short(rows.gather(x), rows, several=ctx.several, cache=cache))


class NoCanon(nn.Module):
    """`x`: the place of a Canon layer that a sublayer lacks."""

    def forward(self, x: Hidden, ctx: Context, cache: StateCache | None = None) -> Hidden:
        return x


class CanonCache:
    """The state of a layer: that of its mixer, and the last inputs of both Canon layers."""

    def __init__(self, mixer: Cache, before_mixer: StateCache, before_feedforward: StateCache):
        self.mixer = mixer
        self.before_mixer = before_mixer
        self.before_feedforward = before_feedforward

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Keep these batch rows, in this order; rows may repeat."""
        for part in (self.mixer, self.before_mixer, self.before_feedforward):
            part.select(rows)


class CanonMixer(nn.Module):
    """`mixer(canon(x))`: a token mixer behind a Canon layer, which is place A."""

    def __init__(self, canon: nn.Module, sublayer: nn.Module, d_model: int, left: int) -> None:
        super().__init__()
        self.canon = canon
        self.sublayer = sublayer
        self.d_model = d_model
        self.left = left

    @property
    def pattern(self) -> Mask:
        """The mask that the mixer adds to that of the pass."""
        return self._mixer.pattern

    def forward(self, x: Hidden, ctx: Context, cache: CanonCache | None = None) -> Hidden:
        taps, held = (None, None) if cache is None else (cache.before_mixer, cache.mixer)
        return self.sublayer(self.canon(x, ctx, taps), ctx, held)

    def new_cache(self) -> CanonCache:
        """An empty cache for the layer."""
        taps = (StateCache(self.left, self.d_model) for _ in range(2))
        return CanonCache(self._mixer.new_cache(), *taps)

    @property
    def _mixer(self) -> Mixer:
        assert isinstance(self.sublayer, Mixer)
        return self.sublayer


class CanonFeedForward(nn.Module):
    """`feedforward(canon(x))`: a feed-forward behind a Canon layer, which is place C."""

    def __init__(self, canon: nn.Module, sublayer: nn.Module) -> None:
        super().__init__()
        self.canon = canon
        self.sublayer = sublayer

    def forward(self, x: Hidden, ctx: Context, cache: CanonCache | None = None) -> Hidden:
        return self.sublayer(
            self.canon(x, ctx, None if cache is None else cache.before_feedforward)
        )


@config
class CanonConfig:
    """A short convolution of each feature, with a residual, of what a sublayer reads."""

    places: Literal["A", "C", "AC"] = "AC"
    """Before which sublayers: `A` is the mixer, `C` the feed-forward. There is no place within
    attention (B) or a feed-forward (D): these have no state of a convolution in their caches.
    """
    kernel_size: PositiveInt = 4
    """Tokens that the kernel spans, the token itself included."""
    bias: bool = False
    """Whether the kernel has a bias."""

    def conflict(self, around: Any) -> str | None:
        """Canon layers stand between sublayers of a layer that follow one another."""
        if isinstance(around.residual, ParallelConfig):
            return "canon is for sublayers that follow one another: give residual = 'pre' or 'post'"
        if around.per_layer is not None:
            return "canon and embedding.per_layer do not go together: give one"
        return None

    def around(self, block: Block, d_model: int) -> CanonBlock:
        """The block with Canon layers before its sublayers."""

        def before(place: str, sublayer: nn.Module) -> nn.Module:
            if place not in self.places or isinstance(sublayer, NoMixer | NoFeedForward):
                return NoCanon()
            return Canon(d_model, self.kernel_size, bias=self.bias)

        mixer, feedforward = block.attention, block.feedforward
        return CanonBlock(
            attention=CanonMixer(before("A", mixer), mixer, d_model, self.kernel_size - 1),
            attention_residual=block.attention_residual,
            feedforward=CanonFeedForward(before("C", feedforward), feedforward),
            feedforward_residual=block.feedforward_residual,
        )
