"""Parts that other libraries lack are refused by kind."""

from dataclasses import dataclass

import pytest
from torch import nn

from addnorm.convert.core.known import embedding_of, required_eps, token_head_of
from addnorm.errors import InputError
from addnorm.models import DecoderConfig
from addnorm.nn.norms import DynamicTanhConfig, LayerNormConfig


@dataclass(frozen=True)
class OwnHead:
    def build(self, d_model: int, n_outputs: int) -> nn.Module:
        return nn.Linear(d_model, n_outputs)


@dataclass(frozen=True)
class OwnEmbedding:
    def build(self, vocab_size: int, d_model: int, position: object, dropout: float) -> nn.Module:
        return nn.Embedding(vocab_size, d_model)


def test_our_own_parts_come_back_as_they_are() -> None:
    model = DecoderConfig(d_model=8)
    assert token_head_of(model) is model.head
    assert embedding_of(model) is model.embedding
    assert required_eps(LayerNormConfig(eps=0.5)) == 0.5


def test_other_parts_are_refused_by_name() -> None:
    model = DecoderConfig(d_model=8, head=OwnHead(), embedding=OwnEmbedding())
    with pytest.raises(InputError, match=r"head .*OwnHead"):
        token_head_of(model)
    with pytest.raises(InputError, match=r"embedding .*OwnEmbedding"):
        embedding_of(model)
    with pytest.raises(InputError, match="dynamic_tanh has no ε"):
        required_eps(DynamicTanhConfig())
