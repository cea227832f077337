"""A family refuses parts that other libraries lack, by their kind."""

from dataclasses import dataclass

import pytest
from torch import nn

from addnorm.convert.core.family import embedding_of, token_head_of
from addnorm.errors import InputError
from addnorm.models import DecoderConfig


@dataclass(frozen=True)
class OwnHead:
    def build(self, d_model: int, n_outputs: int) -> nn.Module:
        return nn.Linear(d_model, n_outputs)


@dataclass(frozen=True)
class OwnEmbedding:
    def build(self, vocab_size: int, d_model: int, position: object, dropout: float) -> nn.Module:
        return nn.Embedding(vocab_size, d_model)


def test_built_in_parts_are_returned() -> None:
    model = DecoderConfig(d_model=8)
    assert token_head_of(model) is model.head
    assert embedding_of(model) is model.embedding


def test_custom_parts_are_refused_by_name() -> None:
    model = DecoderConfig(d_model=8, head=OwnHead(), embedding=OwnEmbedding())
    with pytest.raises(InputError, match=r"head .*OwnHead"):
        token_head_of(model)
    with pytest.raises(InputError, match=r"embedding .*OwnEmbedding"):
        embedding_of(model)
