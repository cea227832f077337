"""MixerConfig: attention and its alternatives in a block."""

from typing import Annotated, Protocol, runtime_checkable

import torch
from torch import nn

from addnorm.nn.attention import AttentionConfig
from addnorm.nn.blocks import Mixer
from addnorm.nn.built import built, built_module
from addnorm.nn.context import Context
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.masks import Causal, Full
from addnorm.nn.positions.position import Position
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.parts import Family


@runtime_checkable
class MixerPart(Protocol):
    """A configuration of a token mixer, the sublayer in which tokens exchange information.

    The module it builds is called as `mixer(x, ctx, cache)`, `x` of shape `[batch, seq, d_model]`;
    `ctx` has the mask, the positions and which tokens are real, `cache` comes from its
    `new_cache()`, or is None. Its `pattern` is the mask that it adds to the mask of the forward
    pass (`Full()` for none). `layer` counts from 0.
    """

    def build(self, d_model: int, position: Position, causal: bool, layer: int) -> nn.Module: ...


MixerConfig = Annotated[
    AttentionConfig | RecurrentConfig | ConvolutionConfig | MixerPart,
    Family("mixer", MixerPart, default="attention"),
]
"""Any token mixer, built-in or custom."""


def build_mixer(
    mixer: MixerConfig, d_model: int, position: Position, causal: bool, layer: int
) -> nn.Module:
    """The mixer of a layer. Raises `InputError` if a custom part builds none."""
    made = mixer.build(d_model, position, causal, layer)
    parts = built(mixer, made, Mixer, "the mixer must be an nn.Module with pattern and new_cache()")
    x = torch.zeros(2, 3, d_model)
    ctx = Context.over(x, Causal() if causal else Full()).restrict(parts.pattern)
    return built_module(mixer, made, "mixer(x, ctx, cache)", (x, ctx, None), x.shape)
