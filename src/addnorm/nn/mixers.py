"""MixerConfig: what may stand in a block where attention does."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from addnorm.nn.attention import AttentionConfig
from addnorm.nn.convolution import ConvolutionConfig
from addnorm.nn.recurrent import RecurrentConfig


def _kind(value: Any) -> str:
    """The kind written in a recipe, or that of a built configuration; attention if none is."""
    if isinstance(value, dict):
        return value.get("kind", "attention")
    return getattr(value, "kind", "attention")


MixerConfig = Annotated[
    Annotated[AttentionConfig, Tag("attention")]
    | Annotated[RecurrentConfig, Tag("recurrent")]
    | Annotated[ConvolutionConfig, Tag("convolution")],
    Discriminator(_kind),
]
"""Every mixer there is."""
