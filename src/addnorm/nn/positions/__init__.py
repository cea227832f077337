"""Position encodings, one file each; `PositionConfig` is the union of their configurations."""

from typing import Annotated

from addnorm.nn.positions.alibi import ALiBi, ALiBiConfig
from addnorm.nn.positions.axial_rotary import AxialRotary, AxialRotaryConfig
from addnorm.nn.positions.disentangled import Disentangled, DisentangledConfig
from addnorm.nn.positions.kerple import KERPLE, KERPLEConfig
from addnorm.nn.positions.learned import Learned, LearnedConfig
from addnorm.nn.positions.learned_t5 import LearnedT5, LearnedT5Config
from addnorm.nn.positions.position import (
    Bias,
    BuildContext,
    NoPosition,
    NoPositionConfig,
    Position,
    PositionPart,
)
from addnorm.nn.positions.rotary import DynamicRotary, Rotary, RotaryConfig
from addnorm.nn.positions.rounded_alibi import RoundedALiBi, RoundedALiBiConfig
from addnorm.nn.positions.scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRoPEScaling,
    NTKScaling,
    ProportionalScaling,
    ScalingConfig,
    YaRNScaling,
)
from addnorm.nn.positions.sinusoidal import Sinusoidal, SinusoidalConfig, sinusoidal_encoding
from addnorm.nn.positions.t5 import T5Bias, T5BiasConfig
from addnorm.nn.positions.transformer_xl import RelativeScores, TransformerXL, TransformerXLConfig
from addnorm.parts import Family

PositionConfig = Annotated[
    SinusoidalConfig
    | LearnedConfig
    | RotaryConfig
    | ALiBiConfig
    | T5BiasConfig
    | TransformerXLConfig
    | KERPLEConfig
    | LearnedT5Config
    | DisentangledConfig
    | AxialRotaryConfig
    | RoundedALiBiConfig
    | NoPositionConfig
    | PositionPart,
    Family("position", PositionPart),
]
"""Any position encoding, built-in or custom."""

__all__ = [
    "KERPLE",
    "ALiBi",
    "ALiBiConfig",
    "AxialRotary",
    "AxialRotaryConfig",
    "Bias",
    "BuildContext",
    "Disentangled",
    "DisentangledConfig",
    "DynamicRotary",
    "DynamicScaling",
    "KERPLEConfig",
    "Learned",
    "LearnedConfig",
    "LearnedT5",
    "LearnedT5Config",
    "LinearScaling",
    "Llama3Scaling",
    "LongRoPEScaling",
    "NTKScaling",
    "NoPosition",
    "NoPositionConfig",
    "Position",
    "PositionConfig",
    "PositionPart",
    "ProportionalScaling",
    "RelativeScores",
    "Rotary",
    "RotaryConfig",
    "RoundedALiBi",
    "RoundedALiBiConfig",
    "ScalingConfig",
    "Sinusoidal",
    "SinusoidalConfig",
    "T5Bias",
    "T5BiasConfig",
    "TransformerXL",
    "TransformerXLConfig",
    "YaRNScaling",
    "sinusoidal_encoding",
]
