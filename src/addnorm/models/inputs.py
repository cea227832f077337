"""Encoder inputs: tokens, images, audio and time series, and their embeddings."""

from collections.abc import Sequence
from typing import Annotated, Literal

from jaxtyping import Bool, Float, Int, Shaped
from pydantic import Field
from torch import Tensor

from addnorm.config import WORD, config
from addnorm.models.transformer import TransformerConfig
from addnorm.nn.audio import LogMelEmbedding, LogMelEmbeddingConfig
from addnorm.nn.context import Context
from addnorm.nn.convolutional_embedding import ConvolutionalEmbedding, ConvolutionalEmbeddingConfig
from addnorm.nn.embed import TokenEmbedding
from addnorm.nn.masks import Full, Mask
from addnorm.nn.patches import (
    PatchEmbedding,
    PatchEmbeddingConfig,
    SeriesEmbedding,
    SeriesEmbeddingConfig,
)
from addnorm.nn.positions.position import Position
from addnorm.nn.waveform import WaveformEmbedding, WaveformEmbeddingConfig

Input = (
    TokenEmbedding
    | PatchEmbedding
    | ConvolutionalEmbedding
    | LogMelEmbedding
    | WaveformEmbedding
    | SeriesEmbedding
)
"""An input embedding of any kind."""

PADDED = (LogMelEmbedding, WaveformEmbedding, SeriesEmbedding)
"""Those whose padding is not that of the sequence that they give."""


@config
class TokenInputConfig:
    """`E[token]`, by the table of `model.embedding` (Vaswani et al. 2017, §3.4)."""

    kind: Literal["tokens"] = "tokens"

    def n_positions(self, size: Sequence[int]) -> int:
        """The number of positions that a text of this many tokens takes."""
        return size[-1]


InputConfig = Annotated[
    TokenInputConfig
    | PatchEmbeddingConfig
    | ConvolutionalEmbeddingConfig
    | LogMelEmbeddingConfig
    | WaveformEmbeddingConfig
    | SeriesEmbeddingConfig,
    Field(discriminator="kind"),
    WORD,
]
"""Any kind of input."""


def build_input(
    kind: InputConfig, transformer: TransformerConfig, position: Position, vocab_size: int
) -> Input:
    """Build the embedding of this kind of input with the sizes of the model."""
    if not isinstance(kind, TokenInputConfig):
        return kind.build(transformer.d_model, position, transformer.dropout)
    if not vocab_size:
        raise ValueError("a model that reads tokens needs vocab_size")
    return transformer.build_embedding(vocab_size, position)


FULL = Full()


def embedded(
    embed: Input,
    inputs: Shaped[Tensor, "batch *input"],
    valid: Bool[Tensor, "batch input_seq"] | None,
    types: Int[Tensor, "batch seq"] | None = None,
    mask: Mask = FULL,
) -> tuple[Float[Tensor, "rows seq d_model"], Context]:
    """Embed the inputs as a sequence, with its context for a stack, by default a bidirectional one.

    The sequence has a row for each input, or for each variable where these are independent.
    """
    if not isinstance(embed, TokenEmbedding):
        return embed(inputs, valid)
    ctx = Context.over(inputs, mask, valid=valid)
    return embed(inputs, ctx, types), ctx


def valid_positions(
    embed: Input, valid: Bool[Tensor, "batch input_seq"] | None
) -> Bool[Tensor, "batch seq"] | None:
    """Map `valid`, the mask of the real inputs, to positions of the embedded sequence."""
    if valid is not None and isinstance(embed, PADDED):
        return embed.valid_positions(valid)
    return valid
