"""Embeddings: tokens to vectors, with the positions that act there."""

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from addnorm.config import Probability, config
from addnorm.nn.context import Context
from addnorm.nn.dropout import Dropout
from addnorm.nn.norms import NormConfig
from addnorm.nn.positions.position import Position


class Embedding(nn.Module):
    """`drop(norm(position(scale · drop_word(E[tokens]))))`, and zero at padding.

    `word_dropout` hides whole words (Iyyer et al. 2015, §4.1), `dropout` single features.

    The zero keeps whatever stands in the padding, NaN included, out of every later product.
    """

    def __init__(
        self,
        vocab_size: int,
        d_model: int,
        *,
        position: Position,
        scale: float = 1.0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.position = position
        self.scale = scale
        self.norm = norm or nn.Identity()
        self.dropout = Dropout(dropout)
        self.word_dropout = Dropout(word_dropout)

    def forward(
        self, tokens: Int[Tensor, "batch seq"], ctx: Context
    ) -> Float[Tensor, "batch seq d_model"]:
        kept = self.word_dropout(self.tokens.weight.new_ones(*tokens.shape, 1))
        x = self.position.embed(self.tokens(tokens) * (self.scale * kept), ctx)
        return zero_padding(self.dropout(self.norm(x)), ctx.valid)


@config
class EmbeddingConfig:
    """`scale = "sqrt"` multiplies by √d_model, as the original does (Vaswani et al. 2017, §3.4)."""

    scale: Literal["one", "sqrt"] = "sqrt"
    norm: NormConfig | None = None
    word_dropout: Probability = 0.0

    def build(self, vocab_size: int, d_model: int, position: Position, dropout: float) -> Embedding:
        return Embedding(
            vocab_size,
            d_model,
            position=position,
            scale=math.sqrt(d_model) if self.scale == "sqrt" else 1.0,
            norm=None if self.norm is None else self.norm.build(d_model),
            dropout=dropout,
            word_dropout=self.word_dropout,
        )


def zero_padding(
    x: Float[Tensor, "batch seq d_model"], valid: Tensor | None
) -> Float[Tensor, "batch seq d_model"]:
    """`x` where `valid`, zero elsewhere."""
    return x if valid is None else torch.where(valid[..., None], x, 0.0)
