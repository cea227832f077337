"""TransformerConfig: the fields that all models share, and how embedding and stack are built."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field, PositiveInt
from torch import nn

from addnorm.config import Probability, config
from addnorm.nn.attention import AdditiveConfig, AttentionConfig, BilinearConfig, PatternConfig
from addnorm.nn.blocks import (
    AnyBlock,
    Block,
    CrossBlock,
    Mixer,
    ParallelBlock,
    ParallelCrossBlock,
    Stack,
)
from addnorm.nn.embed import Embedding, EmbeddingConfig
from addnorm.nn.exits import ExitHead
from addnorm.nn.feedforward import FeedForwardConfig
from addnorm.nn.heads import HeadConfig
from addnorm.nn.init import InitName
from addnorm.nn.mixers import MixerConfig
from addnorm.nn.moe import AnyFeedForwardConfig
from addnorm.nn.norms import LayerNormConfig, NoNorm, NormConfig
from addnorm.nn.positions import (
    NoPositionConfig,
    PositionConfig,
    RotaryConfig,
    SinusoidalConfig,
    TransformerXLConfig,
)
from addnorm.nn.positions.position import BuildContext, Position
from addnorm.nn.residuals import (
    Depth,
    ParallelConfig,
    PostNormConfig,
    PreNorm,
    PreNormConfig,
    ResidualConfig,
)

LayerPositionConfig = Annotated[RotaryConfig | NoPositionConfig, Field(discriminator="kind")]
"""The positions that a layer may have of its own."""


@config
class LayerConfig:
    """The fields in which one layer differs from the model.

    Gemma 3 (Gemma Team 2025, §2.1) has five layers with a window between two that see all, and
    turns their queries and keys by other frequencies.
    """

    pattern: PatternConfig | None = None
    position: LayerPositionConfig | None = None


@config
class TransformerConfig:
    """The fields that all model configurations share; each adds its own.

    `dropout` acts on embeddings and on what every sublayer adds to the residual stream; attention
    and feed-forward have their own. `max_len` bounds learned positions alone. Layer `i` takes what
    entry `i` of `layer_pattern` says, which begins anew when it ends. `vocab_size` is by default
    that of the tokenizer.
    """

    d_model: PositiveInt = 512
    n_layers: PositiveInt = 6
    max_len: PositiveInt = 1024
    position: PositionConfig = SinusoidalConfig()
    attention: MixerConfig = AttentionConfig()
    cross_attention: AttentionConfig | None = None
    feedforward: AnyFeedForwardConfig = FeedForwardConfig()
    norm: NormConfig = LayerNormConfig()
    residual: ResidualConfig = PostNormConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    dropout: Probability = 0.1
    init: InitName = "xavier"
    layer_pattern: tuple[LayerConfig, ...] = ()
    vocab_size: PositiveInt | None = None

    def __post_init__(self) -> None:
        check_compatible(self.d_model, self.position, self.attention)
        if self.layer_pattern and not isinstance(self.attention, AttentionConfig):
            raise ValueError(
                f"layer_pattern changes attention, and a {self.attention.kind} has none"
            )
        for layer in self.layer_pattern:
            check_compatible(self.d_model, layer.position or self.position, self.attention)

    def build_embedding(self, vocab_size: int, position: Position) -> Embedding:
        return self.embedding.build(vocab_size, self.d_model, position, self.dropout)

    def build_position(
        self, *, causal: bool, position: PositionConfig | None = None, max_len: int | None = None
    ) -> Position:
        """The scheme of one stack, or of one layer: by default the model's own."""
        attention = self.attention
        if not isinstance(attention, AttentionConfig):
            attention = AttentionConfig(n_heads=1)
        heads = attention.heads(self.d_model)
        build_context = BuildContext(
            d_model=self.d_model,
            max_len=max_len or self.max_len,
            n_heads=heads.n_heads,
            d_head=heads.d_head,
            causal=causal,
            scale=attention.score.scale(heads.d_head),
        )
        return (position or self.position).build(build_context)

    @property
    def cross_attention_config(self) -> AttentionConfig:
        """The configuration of cross-attention: its own, or else that of self-attention."""
        attention = self.attention if isinstance(self.attention, AttentionConfig) else None
        return self.cross_attention or attention or AttentionConfig()

    def build_stack(self, position: Position, depth: Depth) -> Stack:
        """Blocks of self-attention, or what stands in its place, and feed-forward."""
        block = self.parallel(ParallelBlock) or Block
        blocks: list[AnyBlock] = []
        for i in range(depth.decoder if depth.causal else depth.encoder):
            first, second = self.build_residuals(2, depth, i)
            blocks.append(
                block(
                    attention=self.build_mixer(position, depth, i),
                    attention_residual=first,
                    feedforward=self.feedforward.build(self.d_model),
                    feedforward_residual=second,
                )
            )
        return Stack(blocks, self.residual.build_final(self.d_model, self.norm))

    def build_cross_stack(self, position: Position, depth: Depth) -> Stack:
        """Blocks with cross-attention to an encoder's output."""
        block = self.parallel(ParallelCrossBlock) or CrossBlock
        blocks: list[AnyBlock] = []
        for i in range(depth.decoder):
            first, second, third = self.build_residuals(3, depth, i)
            blocks.append(
                block(
                    attention=self.build_mixer(position, depth, i),
                    attention_residual=first,
                    cross_attention=self.cross_attention_config.build_cross(self.d_model),
                    cross_attention_residual=second,
                    feedforward=self.feedforward.build(self.d_model),
                    feedforward_residual=third,
                )
            )
        return Stack(blocks, self.residual.build_final(self.d_model, self.norm))

    def build_mixer(self, position: Position, depth: Depth, layer: int) -> Mixer:
        """The token mixer of one layer: self-attention, or what stands in its place."""
        pattern = self.layer_pattern or (LayerConfig(),)
        layer_config = pattern[layer % len(pattern)]
        attention = self.attention
        if layer_config.pattern is not None and isinstance(attention, AttentionConfig):
            attention = replace(attention, pattern=layer_config.pattern)
        if layer_config.position is not None:
            position = self.build_position(causal=depth.causal, position=layer_config.position)
        return attention.build(self.d_model, position.in_layer(layer), depth.causal)

    def build_exits(
        self, layers: tuple[int, ...], head: HeadConfig, n_outputs: int
    ) -> nn.ModuleDict:
        """A norm and a head for each of the layers that have an exit."""
        exits = {
            str(layer): ExitHead(self.norm.build(self.d_model), head.build(self.d_model, n_outputs))
            for layer in layers
        }
        return nn.ModuleDict(exits)

    def build_residuals(self, n: int, depth: Depth, layer: int) -> list[Any]:
        """The placement of each sublayer of a block."""
        placement = self.residual
        built: list[Any] = [
            placement.build(self.d_model, self.norm, self.dropout, depth) for _ in range(n)
        ]
        if layer == 0 and isinstance(placement, PreNormConfig) and not placement.first:
            built[0] = PreNorm(NoNorm(), self.dropout)
        return built

    def parallel(self, block: Callable[..., AnyBlock]) -> Callable[..., AnyBlock] | None:
        """That parallel block with its shared norm, if the placement is parallel."""
        if not isinstance(self.residual, ParallelConfig):
            return None
        residual = self.residual
        return lambda **parts: block(norm=residual.build_shared(self.d_model, self.norm), **parts)


def check_compatible(d_model: int, position: PositionConfig, attention: MixerConfig) -> None:
    """Raise `ValueError` for parts that cannot be combined; the list of them is here alone."""
    if not isinstance(attention, AttentionConfig):
        return
    d_head = attention.heads(d_model).d_head
    if isinstance(position, RotaryConfig):
        position.width(d_head)
    if isinstance(position, TransformerXLConfig) and d_model % 2:
        raise ValueError(
            f"transformer_xl positions encode distances in pairs: d_model = {d_model} must be "
            f"even, such as {d_model + 1}"
        )
    if isinstance(position, RotaryConfig | TransformerXLConfig) and isinstance(
        attention.score, BilinearConfig | AdditiveConfig
    ):
        raise ValueError(
            f"{position.kind} positions are defined for dot products: with {attention.score.kind} "
            "scores use 'sinusoidal', 'learned', 'alibi', 't5' or 'none'"
        )
