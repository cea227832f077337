"""Embeddings: scale, token types and norm."""

import torch

from addnorm.checking.definition.embeddings import EMBEDDINGS
from addnorm.nn.embed import EmbeddingConfig
from addnorm.nn.norms import LayerNormConfig

WEIGHTS = {
    "tokens.weight": torch.eye(4).double(),
    "types.weight": torch.tensor([[5.0] * 4, [9.0] * 4]).double(),
}


def embedding(config: EmbeddingConfig) -> list[float]:
    found = EMBEDDINGS.of(config)(
        config, WEIGHTS, [2], lambda x: x + 1, lambda norm, name, x: x if norm is None else -x
    )
    return found[0].tolist()


def test_in_their_order() -> None:
    assert embedding(EmbeddingConfig()) == [1, 1, 3, 1]
    assert embedding(EmbeddingConfig(scale="one")) == [1, 1, 2, 1]
    typed = EmbeddingConfig(n_types=2, norm=LayerNormConfig())
    assert embedding(typed) == [-6, -6, -8, -6]
