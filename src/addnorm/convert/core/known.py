"""The parts of a model that every library writes in a config of its own: ours, or a refusal."""

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
    """The head of a model that writes tokens. Raises `InputError` for someone's own."""
    if isinstance(model.head, TokenHeadConfig):
        return model.head
    raise InputError(f"no other library has the head {kind_of(model.head)}")


def embedding_of(model: Any) -> EmbeddingConfig:
    """The embedding of tokens. Raises `InputError` for someone's own."""
    if isinstance(model.embedding, EmbeddingConfig):
        return model.embedding
    raise InputError(f"no other library has the embedding {kind_of(model.embedding)}")


def required_eps(norm: Any) -> float:
    """The ε of a norm. Raises `InputError` for one that has none."""
    if isinstance(norm, NORMS_WITH_EPS):
        return norm.eps
    raise InputError(f"the norm {kind_of(norm)} has no ε, and this library asks for one")
