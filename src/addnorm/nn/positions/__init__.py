"""Position schemes, one file each; `PositionConfig` is the list of them."""

from typing import Annotated

from pydantic import Field

from addnorm.nn.positions.learned import Learned, LearnedConfig
from addnorm.nn.positions.none import NoPosition, NoPositionConfig
from addnorm.nn.positions.position import Position
from addnorm.nn.positions.rotary import Rotary, RotaryConfig
from addnorm.nn.positions.sinusoidal import Sinusoidal, SinusoidalConfig, sinusoidal_encoding

PositionConfig = Annotated[
    SinusoidalConfig | LearnedConfig | RotaryConfig | NoPositionConfig, Field(discriminator="kind")
]
"""Every position scheme there is."""

__all__ = [
    "Learned",
    "LearnedConfig",
    "NoPosition",
    "NoPositionConfig",
    "Position",
    "PositionConfig",
    "Rotary",
    "RotaryConfig",
    "Sinusoidal",
    "SinusoidalConfig",
    "sinusoidal_encoding",
]
