"""What every model configuration has in common, and how its embedding and stack are built."""

from pydantic import PositiveInt

from addnorm.config import Probability, config
from addnorm.nn.attention import AttentionConfig
from addnorm.nn.blocks import Block, CrossBlock, Stack
from addnorm.nn.embed import Embedding, EmbeddingConfig
from addnorm.nn.feedforward import AnyFeedForwardConfig, FeedForwardConfig
from addnorm.nn.init import InitName
from addnorm.nn.norms import LayerNormConfig, NormConfig
from addnorm.nn.positions import PositionConfig, RotaryConfig, SinusoidalConfig
from addnorm.nn.positions.position import Position
from addnorm.nn.residuals import PostNormConfig, ResidualConfig


@config
class Shape:
    """The width and the parts; abstract: the three model configurations add their own fields.

    `dropout` acts on embeddings and on what every sublayer adds to the residual stream; attention
    and feed-forward have their own. `max_len` bounds learned positions alone.
    """

    d_model: PositiveInt = 512
    n_layers: PositiveInt = 6
    max_len: PositiveInt = 1024
    position: PositionConfig = SinusoidalConfig()
    attention: AttentionConfig = AttentionConfig()
    feedforward: AnyFeedForwardConfig = FeedForwardConfig()
    norm: NormConfig = LayerNormConfig()
    residual: ResidualConfig = PostNormConfig()
    embedding: EmbeddingConfig = EmbeddingConfig()
    dropout: Probability = 0.1
    init: InitName = "xavier"

    def __post_init__(self) -> None:
        d_head = self.attention.heads(self.d_model).d_head
        if isinstance(self.position, RotaryConfig) and d_head % 2:
            raise ValueError(f"rotary positions turn pairs: the head width {d_head} must be even")

    def build_embedding(self, vocab_size: int, position: Position) -> Embedding:
        return self.embedding.build(vocab_size, self.d_model, position, self.dropout)

    def build_position(self) -> Position:
        return self.position.build(self.d_model, self.max_len)

    def build_stack(self, position: Position) -> Stack:
        """Blocks of self-attention and feed-forward."""
        blocks = [
            Block(
                attention=self.attention.build(self.d_model, position.in_layer(i)),
                attention_residual=self.residual.build(self.d_model, self.norm, self.dropout),
                feedforward=self.feedforward.build(self.d_model),
                feedforward_residual=self.residual.build(self.d_model, self.norm, self.dropout),
                pattern=self.attention.pattern,
            )
            for i in range(self.n_layers)
        ]
        return Stack(blocks, self.residual.build_final(self.d_model, self.norm))

    def build_cross_stack(self, position: Position, n_layers: int) -> Stack:
        """Blocks that also look at a memory."""
        blocks = [
            CrossBlock(
                attention=self.attention.build(self.d_model, position.in_layer(i)),
                attention_residual=self.residual.build(self.d_model, self.norm, self.dropout),
                cross_attention=self.attention.build_cross(self.d_model),
                cross_attention_residual=self.residual.build(self.d_model, self.norm, self.dropout),
                feedforward=self.feedforward.build(self.d_model),
                feedforward_residual=self.residual.build(self.d_model, self.norm, self.dropout),
                pattern=self.attention.pattern,
            )
            for i in range(n_layers)
        ]
        return Stack(blocks, self.residual.build_final(self.d_model, self.norm))
