"""What every model configuration has in common, and how its embedding and stack are built."""

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
from addnorm.nn.positions.position import Position, Site
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
    """What a layer has of its own; the rest is the model's.

    Gemma 3 (Gemma Team 2025, §2.1) has five layers with a window between two that see all, and
    turns their queries and keys by other frequencies.
    """

    pattern: PatternConfig | None = None
    position: LayerPositionConfig | None = None


@config
class Shape:
    """The width and the parts; abstract: the three model configurations add their own fields.

    `dropout` acts on embeddings and on what every sublayer adds to the residual stream; attention
    and feed-forward have their own. `max_len` bounds learned positions alone.
    Layer `i` has what entry `i` of `cycle` says, which begins anew when it ends. `vocab_size` is by
    default that of the tokenizer.
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
    cycle: tuple[LayerConfig, ...] = ()
    vocab_size: PositiveInt | None = None

    def __post_init__(self) -> None:
        refuse(self.d_model, self.position, self.attention)
        if self.cycle and not isinstance(self.attention, AttentionConfig):
            raise ValueError(f"cycle changes attention, and a {self.attention.kind} has none")
        for own in self.cycle:
            refuse(self.d_model, own.position or self.position, self.attention)

    def build_embedding(self, vocab_size: int, position: Position) -> Embedding:
        return self.embedding.build(vocab_size, self.d_model, position, self.dropout)

    def build_position(
        self, *, causal: bool, position: PositionConfig | None = None, max_len: int | None = None
    ) -> Position:
        """The scheme of one stack, or of one layer: by default the model's own."""
        own = self.attention
        own = own if isinstance(own, AttentionConfig) else AttentionConfig(n_heads=1)
        heads = own.heads(self.d_model)
        site = Site(
            d_model=self.d_model,
            max_len=max_len or self.max_len,
            n_heads=heads.n_heads,
            d_head=heads.d_head,
            causal=causal,
            scale=own.score.scale(heads.d_head),
        )
        return (position or self.position).build(site)

    @property
    def looking(self) -> AttentionConfig:
        """The attention that looks at a memory: its own, or else that of the blocks."""
        own = self.attention if isinstance(self.attention, AttentionConfig) else None
        return self.cross_attention or own or AttentionConfig()

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
        """Blocks that also look at a memory."""
        block = self.parallel(ParallelCrossBlock) or CrossBlock
        blocks: list[AnyBlock] = []
        for i in range(depth.decoder):
            first, second, third = self.build_residuals(3, depth, i)
            blocks.append(
                block(
                    attention=self.build_mixer(position, depth, i),
                    attention_residual=first,
                    cross_attention=self.looking.build_cross(self.d_model),
                    cross_attention_residual=second,
                    feedforward=self.feedforward.build(self.d_model),
                    feedforward_residual=third,
                )
            )
        return Stack(blocks, self.residual.build_final(self.d_model, self.norm))

    def build_mixer(self, position: Position, depth: Depth, layer: int) -> Mixer:
        """What layer number `layer` has where attention stands."""
        own = self.cycle[layer % len(self.cycle)] if self.cycle else LayerConfig()
        attention = self.attention
        if own.pattern is not None and isinstance(attention, AttentionConfig):
            attention = replace(attention, pattern=own.pattern)
        if own.position is not None:
            position = self.build_position(causal=depth.causal, position=own.position)
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


def refuse(d_model: int, position: PositionConfig, attention: MixerConfig) -> None:
    """Raise `ValueError` for parts that make no sense together; the list of them is here alone."""
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
