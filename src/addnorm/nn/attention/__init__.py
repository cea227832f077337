"""Attention: the multi-head modules, the scores and patterns they take, and the cores they call."""

from addnorm.nn.attention.core import (
    CoreConfig,
    EagerCore,
    EagerCoreConfig,
    FlexCore,
    FlexCoreConfig,
    SDPACore,
    SDPACoreConfig,
)
from addnorm.nn.attention.multihead import AttentionConfig, CrossAttention, HeadShape, SelfAttention
from addnorm.nn.attention.patterns import (
    BlocksPatternConfig,
    FullPatternConfig,
    PatternConfig,
    WindowPatternConfig,
)
from addnorm.nn.attention.scores import (
    AdditiveConfig,
    BilinearConfig,
    DotConfig,
    ScaledDotConfig,
    ScoreConfig,
)

__all__ = [
    "AdditiveConfig",
    "AttentionConfig",
    "BilinearConfig",
    "BlocksPatternConfig",
    "CoreConfig",
    "CrossAttention",
    "DotConfig",
    "EagerCore",
    "EagerCoreConfig",
    "FlexCore",
    "FlexCoreConfig",
    "FullPatternConfig",
    "HeadShape",
    "PatternConfig",
    "SDPACore",
    "SDPACoreConfig",
    "ScaledDotConfig",
    "ScoreConfig",
    "SelfAttention",
    "WindowPatternConfig",
]
