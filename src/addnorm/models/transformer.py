"""The base of all model configurations, which builds embeddings and stacks."""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, PositiveInt
from torch import nn

from addnorm.config import Probability, config
from addnorm.errors import InputError
from addnorm.nn.attention import AttentionConfig, PatternConfig
from addnorm.nn.attention.scores import is_plain_product, scale_of
from addnorm.nn.blocks import (
    AnyBlock,
    Block,
    CrossBlock,
    ParallelBlock,
    ParallelCrossBlock,
    Stack,
)
from addnorm.nn.dropout import LayerDrop
from addnorm.nn.embed import AnyEmbeddingConfig, EmbeddingConfig, TokenEmbedding, build_embedding
from addnorm.nn.exits import ExitHead
from addnorm.nn.feedforward import FeedForwardConfig, build_feedforward
from addnorm.nn.heads import HeadConfig, build_head
from addnorm.nn.init import InitName
from addnorm.nn.mixers import MixerConfig, build_mixer
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.norms import LayerNormConfig, NoNorm, NormConfig, build_norm
from addnorm.nn.positions import (
    ALiBiConfig,
    KERPLEConfig,
    NoPositionConfig,
    PositionConfig,
    RotaryConfig,
    SinusoidalConfig,
    T5BiasConfig,
    TransformerXLConfig,
)
from addnorm.nn.positions.position import BuildContext, Position, PositionPart, build_position
from addnorm.nn.residuals import (
    Depth,
    ParallelConfig,
    PostNormConfig,
    PreNorm,
    PreNormConfig,
    ResidualConfig,
    build_final_norm,
    build_placement,
)
from addnorm.parts import Family, check_conflicts, kind_of

LayerPositionConfig = Annotated[
    RotaryConfig
    | ALiBiConfig
    | KERPLEConfig
    | T5BiasConfig
    | TransformerXLConfig
    | NoPositionConfig
    | PositionPart,
    Family("position", PositionPart),
]
"""The position encodings that can be set per layer: those that act in attention."""


MOST_LAYERS = 4096
"""The deepest stack; the deepest that was published has a thousand layers."""

LayerCount = Annotated[PositiveInt, Field(le=MOST_LAYERS)]
"""How many layers a stack may have."""


@config
class LayerConfig:
    """What a layer has of its own; the rest is the model's.

    Gemma 3 (Gemma Team 2025, §2.1) has five layers with a window between two that see all, and
    turns their queries and keys by other frequencies.
    """

    pattern: PatternConfig | None = None
    """What this layer's attention sees; by default as the model's."""
    position: LayerPositionConfig | None = None
    """The positions of this layer; by default the model's."""


@config
class TransformerConfig:
    """The width and the parts; abstract: the three model configurations add their own fields."""

    d_model: PositiveInt = 512
    """The width of the residual stream."""
    n_layers: LayerCount = 6
    """Blocks in the stack, in an encoder–decoder those of the encoder."""
    max_len: PositiveInt = 1024
    """The longest sequence in tokens that learned positions have a row for."""
    position: PositionConfig = SinusoidalConfig()
    """How the model knows the order of tokens."""
    attention: MixerConfig = AttentionConfig()
    """What mixes the tokens: attention, or a recurrence or convolution in its place."""
    cross_attention: AttentionConfig | None = None
    """The decoder's attention to the encoder; by default that of self-attention."""
    feedforward: AnyFeedForwardConfig = FeedForwardConfig()
    """The layer that acts on each token alone."""
    norm: NormConfig = LayerNormConfig()
    """The norm of every sublayer."""
    residual: ResidualConfig = PostNormConfig()
    """Where norms stand around a sublayer and its residual connection."""
    embedding: AnyEmbeddingConfig = EmbeddingConfig()
    """The table of token vectors, and what is done to them first."""
    dropout: Probability = 0.1
    """The dropout rate of embeddings and of what every sublayer adds to the residual stream."""
    layer_drop: Probability = 0.0
    """How often training skips a layer, so that layers can be removed later; 0.2 is usual."""
    init: InitName = "xavier"
    """How weights start: Glorot's, GPT-2's, BERT's, torch's own or Kim's way, or sublayers that
    write zero.
    """
    layer_pattern: tuple[LayerConfig, ...] = ()
    """What layers have of their own, in turn; it begins anew when it ends."""
    vocab_size: PositiveInt | None = None
    """Rows of the embedding table; by default as many as the tokenizer has tokens."""

    def __post_init__(self) -> None:
        if self.layer_pattern and not isinstance(self.attention, AttentionConfig):
            mixer = kind_of(self.attention)
            raise ValueError(f"layer_pattern changes attention, and a {mixer} has none")
        parts = [self.norm, self.residual, self.feedforward, self.attention, self.embedding]
        check_conflicts(parts, self)
        if isinstance(self.attention, AttentionConfig):
            self.check_position(self.position)
            for layer in self.layer_pattern:
                self.check_position(layer.position or self.position)

    def check_position(self, position: Any) -> None:
        """Raise `ValueError` if the position encoding conflicts with the attention."""
        check_conflicts([position], self.build_context(causal=True, max_len=self.max_len))

    def build_context(self, *, causal: bool, max_len: int) -> BuildContext:
        """The model sizes that a position encoding is built for."""
        attention = self.attention
        if not isinstance(attention, AttentionConfig):
            attention = AttentionConfig(n_heads=1)
        heads = attention.heads(self.d_model)
        return BuildContext(
            d_model=self.d_model,
            max_len=max_len,
            n_heads=heads.n_heads,
            n_kv_heads=heads.n_kv_heads,
            d_head=heads.d_head,
            causal=causal,
            scale=scale_of(attention.score, heads.d_head),
            n_layers=self.n_layers,
            score=kind_of(attention.score),
            plain_products=is_plain_product(attention.score),
        )

    def build_embedding(self, vocab_size: int, position: Position) -> TokenEmbedding:
        """Build the token embedding; a custom one has the same attributes (`EmbeddingPart`)."""
        return build_embedding(self.embedding, vocab_size, self.d_model, position, self.dropout)

    def build_position(
        self, *, causal: bool, position: PositionConfig | None = None, max_len: int | None = None
    ) -> Position:
        """Build the position encoding of a stack or a layer, by default the model's own."""
        context = self.build_context(causal=causal, max_len=max_len or self.max_len)
        return build_position(position or self.position, context)

    @property
    def cross_attention_config(self) -> AttentionConfig:
        """The attention to a memory: its own configuration, or else that of self-attention here.

        If the blocks have no attention: eight heads, or the largest smaller number that divides the
        width.
        """
        if self.cross_attention is not None:
            return self.cross_attention
        if isinstance(self.attention, AttentionConfig):
            return self.attention
        return AttentionConfig(n_heads=max(n for n in range(1, 9) if self.d_model % n == 0))

    def build_stack(self, position: Position, depth: Depth) -> Stack:
        """Build a stack of blocks with self-attention (or another mixer) and feed-forward."""
        return self._build_stack(position, depth, depth.n_layers, cross=False)

    def build_cross_stack(self, position: Position, depth: Depth) -> Stack:
        """Build a stack of blocks that also have cross-attention."""
        return self._build_stack(position, depth, depth.decoder, cross=True)

    def _build_stack(
        self, position: Position, depth: Depth, n_layers: int, *, cross: bool
    ) -> Stack:
        blocks = [
            self._layer(position, replace(depth, layer=i), cross=cross) for i in range(n_layers)
        ]
        layer_drop = LayerDrop(self.layer_drop) if self.layer_drop else None
        return Stack(blocks, build_final_norm(self.residual, self.d_model, self.norm), layer_drop)

    def _layer(self, position: Position, depth: Depth, *, cross: bool) -> AnyBlock:
        """The block of a layer; a part that cannot stand there is refused with its number."""
        try:
            return self.build_block(position, depth, cross=cross)
        except InputError as error:
            raise InputError(f"layer {depth.layer}: {error}") from error

    def build_block(self, position: Position, depth: Depth, *, cross: bool) -> AnyBlock:
        """Build layer `depth.layer` of a stack, with every sublayer in its placement."""
        names = ["attention", *(["cross_attention"] if cross else []), "feedforward"]
        parts: dict[str, Any] = {
            f"{name}_residual": self.build_residual(depth, first=name == "attention")
            for name in names
        }
        parts["attention"] = self.build_mixer(position, depth)
        if cross:
            parts["cross_attention"] = self.cross_attention_config.build_cross(
                self.d_model, depth.layer
            )
        parts["feedforward"] = build_feedforward(self.feedforward, self.d_model)
        if isinstance(self.residual, ParallelConfig):
            parts["norm"] = self.residual.build_shared(self.d_model, self.norm)
            return ParallelCrossBlock(**parts) if cross else ParallelBlock(**parts)
        return CrossBlock(**parts) if cross else Block(**parts)

    def build_mixer(self, position: Position, depth: Depth) -> nn.Module:
        """Build the token mixer of this layer."""
        pattern = self.layer_pattern
        layer = pattern[depth.layer % len(pattern)] if pattern else LayerConfig()
        attention = self.attention
        if layer.pattern is not None and isinstance(attention, AttentionConfig):
            attention = replace(attention, pattern=layer.pattern)
        if layer.position is not None:
            position = self.build_position(causal=depth.causal, position=layer.position)
        in_layer = position.in_layer(depth.layer)
        return build_mixer(attention, self.d_model, in_layer, depth.causal, depth.layer)

    def build_residual(self, depth: Depth, *, first: bool) -> nn.Module:
        """Build the placement of one sublayer; `first` if it is the first of its block."""
        placement = self.residual
        leaves_out = isinstance(placement, PreNormConfig) and not placement.first
        if first and depth.layer == 0 and leaves_out:
            return PreNorm(NoNorm(), self.dropout)
        return build_placement(placement, self.d_model, self.norm, self.dropout, depth)

    def build_exits(
        self, layers: tuple[int, ...], head: HeadConfig, n_outputs: int
    ) -> nn.ModuleDict:
        """Build a norm and a head for each early exit."""
        exits = {
            str(layer): ExitHead(
                build_norm(self.norm, self.d_model), build_head(head, self.d_model, n_outputs)
            )
            for layer in layers
        }
        return nn.ModuleDict(exits)
