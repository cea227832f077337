"""Attention: the multi-head modules and the cores that they call."""

from addnorm.nn.attention.core import (
    CoreConfig,
    EagerCore,
    EagerCoreConfig,
    SDPACore,
    SDPACoreConfig,
)
from addnorm.nn.attention.multihead import AttentionConfig, CrossAttention, HeadShape, SelfAttention

__all__ = [
    "AttentionConfig",
    "CoreConfig",
    "CrossAttention",
    "EagerCore",
    "EagerCoreConfig",
    "HeadShape",
    "SDPACore",
    "SDPACoreConfig",
    "SelfAttention",
]
