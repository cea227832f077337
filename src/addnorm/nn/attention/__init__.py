"""Attention: multi-head modules, score functions, sparsity patterns and kernels (cores)."""

from addnorm.nn.attention.core import EagerCore, EagerCoreConfig, SDPACore, SDPACoreConfig
from addnorm.nn.attention.cross_layer import CrossLayerAttention
from addnorm.nn.attention.differential import DifferentialCore, DifferentialCoreConfig
from addnorm.nn.attention.flex import FlexCore, FlexCoreConfig
from addnorm.nn.attention.latent import LatentAttention, LatentAttentionConfig
from addnorm.nn.attention.multihead import (
    AttentionConfig,
    CoreConfig,
    CorePart,
    CrossAttention,
    SelfAttention,
)
from addnorm.nn.attention.outputs import (
    DifferentialOutput,
    DifferentialOutputConfig,
    GatedOutput,
    GatedOutputConfig,
    OutputConfig,
    OutputPart,
)
from addnorm.nn.attention.patterns import (
    BlocksPatternConfig,
    FullPatternConfig,
    PatternConfig,
    PatternPart,
    WindowPatternConfig,
)
from addnorm.nn.attention.scores import (
    AdditiveConfig,
    BilinearConfig,
    DotConfig,
    ScaledDotConfig,
    ScoreConfig,
    ScorePart,
)
from addnorm.nn.attention.sinks import SinkCore, SinkCoreConfig
from addnorm.nn.types import HeadShape

__all__ = [
    "AdditiveConfig",
    "AttentionConfig",
    "BilinearConfig",
    "BlocksPatternConfig",
    "CoreConfig",
    "CorePart",
    "CrossAttention",
    "CrossLayerAttention",
    "DifferentialCore",
    "DifferentialCoreConfig",
    "DifferentialOutput",
    "DifferentialOutputConfig",
    "DotConfig",
    "EagerCore",
    "EagerCoreConfig",
    "FlexCore",
    "FlexCoreConfig",
    "FullPatternConfig",
    "GatedOutput",
    "GatedOutputConfig",
    "HeadShape",
    "LatentAttention",
    "LatentAttentionConfig",
    "OutputConfig",
    "OutputPart",
    "PatternConfig",
    "PatternPart",
    "SDPACore",
    "SDPACoreConfig",
    "ScaledDotConfig",
    "ScoreConfig",
    "ScorePart",
    "SelfAttention",
    "SinkCore",
    "SinkCoreConfig",
    "WindowPatternConfig",
]
