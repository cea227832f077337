"""Accessors for built-in parts; custom parts, which no other library has, are refused."""

from typing import Any

from addnorm.errors import InputError
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.norms import (
    BatchNormConfig,
    LayerNormConfig,
    OffsetRMSNormConfig,
    RMSNormConfig,
    ScaleNormConfig,
)
from addnorm.parts import kind_of

NORMS_WITH_EPS = (
    LayerNormConfig,
    RMSNormConfig,
    OffsetRMSNormConfig,
    ScaleNormConfig,
    BatchNormConfig,
)


def token_head_of(model: Any) -> TokenHeadConfig:
    """The token head of a model. Raises `InputError` for a custom head."""
    if isinstance(model.head, TokenHeadConfig):
        return model.head
    raise InputError(f"no other library has the head {kind_of(model.head)}")


def embedding_of(model: Any) -> EmbeddingConfig:
    """The token embedding of a model. Raises `InputError` for a custom embedding."""
    if isinstance(model.embedding, EmbeddingConfig):
        return model.embedding
    raise InputError(f"no other library has the embedding {kind_of(model.embedding)}")


def required_eps(norm: Any) -> float:
    """The ε of a norm. Raises `InputError` if it has none."""
    if isinstance(norm, NORMS_WITH_EPS):
        return norm.eps
    raise InputError(f"the norm {kind_of(norm)} has no ε, and this library asks for one")
