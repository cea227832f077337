"""MixerConfig: what may stand in a block where attention does."""

from typing import Annotated, Protocol, runtime_checkable

from torch import nn

from addnorm.nn.attention import AttentionConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.positions.position import Position
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.parts import Family


@runtime_checkable
class MixerPart(Protocol):
    """A configuration of a mixer: what lets the tokens of a text see each other.

    The module it builds is called as `mixer(x, ctx, cache)`, `x` of shape `[batch, seq, d_model]`;
    `ctx` has the mask, the positions and which tokens are real, `cache` is what its `new_cache()`
    gave, or None. Its `pattern` is the mask that it adds to that of the pass (`Full()` where it
    reads none). `layer` counts from 0.
    """

    def build(self, d_model: int, position: Position, causal: bool, layer: int) -> nn.Module: ...


MixerConfig = Annotated[
    AttentionConfig | RecurrentConfig | ConvolutionConfig | MixerPart,
    Family("mixer", MixerPart, default="attention"),
]
"""Every mixer there is."""
