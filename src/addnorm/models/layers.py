"""The parts of one layer, from `layer_pattern` or else from the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from addnorm.config import config
from addnorm.nn.attention import AttentionConfig, LatentAttentionConfig, PatternConfig
from addnorm.nn.blocks import MixerConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.delta import GatedDeltaConfig
from addnorm.nn.mamba import Mamba2Config
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.no_sublayer import ABSENT, NoMixerConfig
from addnorm.nn.norms import NormConfig
from addnorm.nn.positions import (
    ALiBiConfig,
    KERPLEConfig,
    NoPositionConfig,
    PositionConfig,
    RotaryConfig,
    RoundedALiBiConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.positions.position import PositionPart
from addnorm.nn.recurrent import RecurrentConfig
from addnorm.nn.short_convolution import GatedConvolutionConfig
from addnorm.parts import Family, kind_of

LayerPositionConfig = Annotated[
    RotaryConfig
    | ALiBiConfig
    | RoundedALiBiConfig
    | KERPLEConfig
    | T5BiasConfig
    | TransformerXLConfig
    | NoPositionConfig
    | PositionPart,
    Family("position", PositionPart),
]
"""The position encodings that can be set per layer: those that act in attention."""

WITHOUT_POSITIONS = (
    RecurrentConfig,
    ConvolutionConfig,
    GatedDeltaConfig,
    Mamba2Config,
    GatedConvolutionConfig,
    NoMixerConfig,
)
"""The mixers that need no positions."""


@config
class LayerConfig:
    """The parts in which a layer differs from the model.

    Gemma 3 (Gemma Team 2025, §2.1) has five layers with a window between two without, and rotary
    positions of other frequencies in them; Jamba (Lieber et al. 2024, §3.1) has seven
    recurrent layers to one of attention, and a mixture of experts in every second layer.
    """

    attention: MixerConfig | None = None
    """The mixer of this layer's tokens; by default as in the model."""
    pattern: PatternConfig | None = None
    """The attention pattern of this layer; by default the model's."""
    position: LayerPositionConfig | None = None
    """The positions of this layer; by default the model's."""
    feedforward: AnyFeedForwardConfig | None = None
    """The feed-forward of this layer; by default the model's."""
    norm: NormConfig | None = None
    """The norm of this layer's sublayers; by default the model's."""

    def __post_init__(self) -> None:
        if self.pattern is not None and self.attention is not None:
            raise ValueError("pattern is a field of attention: give attention.pattern instead")

    def with_part(self, field: str, change: Callable[[Any], Any]) -> "LayerConfig":
        """This layer with `change` applied to its own part `field`, if it has one."""
        part = vars(self)[field]
        return self if part is None else replace(self, **{field: change(part)})


@dataclass(frozen=True, kw_only=True)
class LayerParts:
    """All parts of one layer."""

    attention: MixerConfig
    cross_attention: AttentionConfig
    """The attention to a memory, which only the decoder of an encoder–decoder has."""
    feedforward: AnyFeedForwardConfig
    norm: NormConfig
    position: PositionConfig

    def with_own(self, layer: LayerConfig) -> "LayerParts":
        """These parts, each replaced by the layer's own if it has one, except `cross_attention`.

        Raises `ValueError` for a pattern or positions where no attention could use them, and for a
        layer of nothing.
        """
        attention = layer.attention or self.attention
        if layer.pattern is not None:
            attention = _with_pattern(attention, layer.pattern)
        if layer.position is not None and isinstance(attention, WITHOUT_POSITIONS):
            raise ValueError(
                f"position acts in attention, and the mixer of this layer is {kind_of(attention)!r}"
            )
        feedforward = layer.feedforward or self.feedforward
        if isinstance(attention, ABSENT) and isinstance(feedforward, ABSENT):
            raise ValueError(
                "attention.kind = 'none' and feedforward.kind = 'none' leave nothing in this "
                "layer: give one of them another kind"
            )
        return replace(
            self,
            attention=attention,
            feedforward=feedforward,
            norm=layer.norm or self.norm,
            position=layer.position or self.position,
        )


def _with_pattern(mixer: MixerConfig, pattern: PatternConfig) -> MixerConfig:
    if not isinstance(mixer, AttentionConfig | LatentAttentionConfig):
        raise ValueError(
            f"pattern restricts attention, and the mixer of this layer is {kind_of(mixer)!r}"
        )
    return replace(mixer, pattern=pattern)


Stacks = Mapping[str, tuple[LayerParts, ...]]
"""The parts of every layer of each stack, by the name of the stack."""


def entries_of(pattern: tuple[LayerConfig, ...], layers: Sequence[int]) -> tuple[LayerConfig, ...]:
    """The entries of a layer pattern for these layers, in this order."""
    if not pattern or all(i % len(pattern) == n % len(pattern) for n, i in enumerate(layers)):
        return pattern
    return tuple(pattern[i % len(pattern)] for i in layers)
