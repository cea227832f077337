"""Token embeddings, including absolute position embeddings."""

import math
from collections.abc import Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    Protocol,
    cast,
    runtime_checkable,
)

import torch
from jaxtyping import Float, Int
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor, nn

from addnorm.config import Probability, config
from addnorm.nn.built import built, built_module
from addnorm.nn.context import Context
from addnorm.nn.dropout import Dropout
from addnorm.nn.hyper_connections import WITH_STREAMS
from addnorm.nn.linear import Linear
from addnorm.nn.masks import Full
from addnorm.nn.norms import BatchNormConfig, LayerNormConfig, NoNorm, NormConfig, build_norm
from addnorm.nn.per_layer_embedding import PerLayerEmbeddingConfig
from addnorm.nn.positions.disentangled import DisentangledConfig
from addnorm.nn.positions.position import Position
from addnorm.nn.positions.transformer_xl import TransformerXLConfig
from addnorm.nn.protocols import OfModules
from addnorm.nn.residuals import ParallelConfig
from addnorm.nn.splits import Split, Splits
from addnorm.parts import Family


class Embedding(nn.Module):
    """`drop(norm(position(scale · drop_word(E[tokens]))))`, and zero at padding.

    `word_dropout` hides whole words (Iyyer et al. 2015, §4.1), `dropout` single features. `types`
    adds a learned vector for the sentence that a token is in (Devlin et al. 2019, §3), by default
    that of the first. `maps` has the map from a table of another width to that of the model: the
    `first` one to the table's vectors, `E[tokens] Pᵀ` (Lan et al. 2020, §3.1), or the `last` one to
    the result, whose positions, types and norm have the width of the table (Lan et al. 2020 and
    Clark et al. 2020, code). With `per_layer`, vectors for every layer follow those of the tokens.

    The zero keeps the values at padding, NaN included, out of every later product. It is set before
    the norm too, whose gradient for the gain would otherwise be 0 · inf.
    """

    splits: ClassVar[Splits] = {"tokens": Split(0)}

    def __init__(
        self,
        tokens: nn.Embedding,
        *,
        position: Position,
        maps: Mapping[Literal["first", "last"], nn.Module] | None = None,
        types: nn.Embedding | None = None,
        scale: float = 1.0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.per_layer: nn.Module | None = None
        self.tokens = tokens
        self.proj = (maps or {}).get("first")
        self.proj_last = (maps or {}).get("last")
        self.types = types
        self.position = position
        self.scale = scale
        self.norm = norm or NoNorm()
        self.dropout = Dropout(dropout)
        self.word_dropout = Dropout(word_dropout)

    def forward(
        self,
        tokens: Int[Tensor, "batch seq"],
        ctx: Context,
        types: Int[Tensor, "batch seq"] | None = None,
    ) -> Float[Tensor, "batch seq _width"]:
        x = self.tokens(tokens)
        keep = self.word_dropout(x.new_ones(*tokens.shape, 1))
        x = x if self.proj is None else self.proj(x)
        x = self.position.embed(x * (self.scale * keep), ctx)
        if self.types is not None:
            first = types is None or self.types.num_embeddings == 1
            x = x + self.types(torch.zeros_like(tokens) if first else types)
        x = zero_padding(x, ctx.valid)
        x = self.dropout(self.norm(x, ctx.valid))
        x = zero_padding(x if self.proj_last is None else self.proj_last(x), ctx.valid)
        if self.per_layer is None:
            return x
        return torch.cat([x, zero_padding(self.per_layer(tokens, x), ctx.valid)], dim=-1)


@config
class EmbeddingConfig:
    """`scale = "sqrt"` multiplies by √d_model, as the original does (Vaswani et al. 2017, §3.4)."""

    kind: Literal["tokens"] = "tokens"
    scale: Literal["one", "sqrt"] | PositiveFloat = "sqrt"
    """The factor of token vectors: one, √d_model (Vaswani et al. 2017, §3.4), or a number."""
    norm: NormConfig | None = None
    """A norm of the embedded tokens; by default none."""
    word_dropout: Probability = 0.0
    """The probability that a whole token vector is zero in training."""
    n_types: NonNegativeInt = 0
    """Token types with a vector of their own, such as BERT's two segments; 0 for none."""
    d_embed: PositiveInt | None = None
    """The width of the table, mapped to d_model without a bias; by default d_model itself."""
    map: Literal["first", "last"] = "first"
    """Whether a table of width d_embed is mapped before positions, types and norm; or after them,
    with a bias, as in ELECTRA and ALBERT: they then have the width d_embed.
    """
    per_layer: PerLayerEmbeddingConfig | None = None
    """Further vectors of each token, one for every layer; by default none."""

    def __post_init__(self) -> None:
        if self.map == "last" and self.d_embed is None:
            raise ValueError("map = 'last' is for a table of another width: give d_embed")

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """The default, and each option."""
        return {
            "tokens": cls(),
            "tokens_unscaled": cls(scale="one"),
            "tokens_scaled": cls(scale=3.0),
            "tokens_normed": cls(norm=LayerNormConfig(), n_types=2),
            "tokens_batchnormed": cls(norm=BatchNormConfig()),
        }

    def conflict(self, around: Any) -> str | None:
        """Projected positions need one width; per-layer vectors need one sequential stack."""
        position = around.position
        if self.per_layer is not None and (problem := _no_per_layer(around)):
            return f"embedding.per_layer gives every layer a vector of each token: {problem}"
        if self.map == "first" or not isinstance(
            position, TransformerXLConfig | DisentangledConfig
        ):
            return None
        return f"positions of kind {position.kind!r} need embedding.map = 'first'"

    def build(self, vocab_size: int, d_model: int, position: Position, dropout: float) -> Embedding:
        tokens, width = nn.Embedding(vocab_size, self.width(d_model)), self.inner_width(d_model)
        return Embedding(
            tokens,
            position=position,
            maps={self.map: Linear(self.d_embed, d_model, bias=self.map == "last")}
            if self.d_embed
            else None,
            types=nn.Embedding(self.n_types, width) if self.n_types else None,
            scale=self.factor(width),
            norm=None if self.norm is None else build_norm(self.norm, width),
            dropout=dropout,
            word_dropout=self.word_dropout,
        )

    def factor(self, d_model: int) -> float:
        """The factor of token vectors."""
        match self.scale:
            case "one":
                return 1.0
            case "sqrt":
                return math.sqrt(d_model)
            case number:
                return number

    def inner_width(self, d_model: int) -> int:
        """The width of positions, types and norm."""
        return self.width(d_model) if self.map == "last" else d_model

    def width(self, d_model: int) -> int:
        """The width of the table."""
        return self.d_embed or d_model


def _no_per_layer(around: Any) -> str | None:
    """Why a model cannot have per-layer vectors; None if it can."""
    if around.kind == "encoder_decoder":
        return "an encoder–decoder cannot have it"
    if around.reads_pictures or getattr(around, "input", around).kind not in ("tokens", "decoder"):
        return f"the input must be tokens, not {around.input.kind!r}"
    if isinstance(around.residual, (ParallelConfig, *WITH_STREAMS)):
        return f"give another residual than {around.residual.kind!r}"
    for name in ("mtp", "n_distinct_layers", "layer_drop"):
        if getattr(around, name, None):
            return f"leave {name} out"
    return None


@runtime_checkable
class EmbeddingPart(Protocol):
    """A configuration of a token embedding.

    The module it builds is called as `embed(tokens, ctx, types)`, with the ids of shape `[batch,
    seq]`, and returns `[batch, seq, d_model]`, zero at padding. It calls `position.embed(x, ctx)`,
    and has the attributes `position` and `tokens`, an `nn.Embedding` of `vocab_size` rows.
    """

    def build(
        self, vocab_size: int, d_model: int, position: Position, dropout: float
    ) -> nn.Module: ...


@runtime_checkable
class HasTable(Protocol, metaclass=OfModules):
    """The attributes that models need from a token embedding, built-in or custom."""

    tokens: nn.Embedding
    position: Position


if TYPE_CHECKING:
    TokenEmbedding = Embedding
else:
    TokenEmbedding = HasTable
"""A token embedding module; a custom one has the same attributes (see `EmbeddingPart`)."""

AnyEmbeddingConfig = Annotated[
    EmbeddingConfig | EmbeddingPart, Family("embedding", EmbeddingPart, default="tokens")
]
"""Any token embedding, built-in or custom."""


def zero_padding(
    x: Float[Tensor, "batch seq d_model"], valid: Tensor | None
) -> Float[Tensor, "batch seq d_model"]:
    """`x` where `valid`, zero elsewhere."""
    return x if valid is None else torch.where(valid[..., None], x, 0.0)


def build_embedding(
    embedding: AnyEmbeddingConfig, vocab_size: int, d_model: int, position: Position, dropout: float
) -> TokenEmbedding:
    """The embedding of tokens. Raises `InputError` if a custom part builds none."""
    made = embedding.build(vocab_size, d_model, position, dropout)
    expected = "the embedding must be an nn.Module with tokens and position"
    table = built(embedding, made, HasTable, expected)
    tokens = torch.zeros(2, 3, dtype=torch.long)
    inputs = (tokens, Context.over(tokens, Full()), None)
    built_module(embedding, made, "embedding(tokens, ctx, types)", inputs, (2, 3, d_model))
    return cast(TokenEmbedding, table)
