"""The Transformer block, the block with cross-attention, and the stack of either."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor, nn

from addnorm.nn.attention.multihead import CrossAttention, SelfAttention
from addnorm.nn.cache import KVCache, LayerCache
from addnorm.nn.context import Context
from addnorm.nn.masks import Mask
from addnorm.nn.residuals import Residual

Hidden = Float[Tensor, "batch seq d_model"]


class Block(nn.Module):
    """Self-attention, then feed-forward, each inside its residual (Vaswani et al. 2017, §3.1)."""

    def __init__(
        self,
        *,
        attention: SelfAttention,
        attention_residual: Residual,
        feedforward: nn.Module,
        feedforward_residual: Residual,
        pattern: Mask,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = attention_residual
        self.feedforward = feedforward
        self.feedforward_residual = feedforward_residual
        self.pattern = pattern

    def forward(self, x: Hidden, ctx: Context, cache: LayerCache | None = None) -> Hidden:
        own = None if cache is None else cache.own
        x = self.attention_residual(x, lambda h: self.attention(h, ctx, own))
        return self.feedforward_residual(x, self.feedforward)


class CrossBlock(nn.Module):
    """Self-attention, cross-attention, then feed-forward: the original decoder layer."""

    def __init__(
        self,
        *,
        attention: SelfAttention,
        attention_residual: Residual,
        cross_attention: CrossAttention,
        cross_attention_residual: Residual,
        feedforward: nn.Module,
        feedforward_residual: Residual,
        pattern: Mask,
    ) -> None:
        super().__init__()
        self.attention = attention
        self.attention_residual = attention_residual
        self.cross_attention = cross_attention
        self.cross_attention_residual = cross_attention_residual
        self.feedforward = feedforward
        self.feedforward_residual = feedforward_residual
        self.pattern = pattern

    def forward(self, x: Hidden, ctx: Context, cache: LayerCache | None = None) -> Hidden:
        own, memory = (None, None) if cache is None else (cache.own, cache.memory)
        x = self.attention_residual(x, lambda h: self.attention(h, ctx, own))
        x = self.cross_attention_residual(x, lambda h: self.cross_attention(h, ctx, memory))
        return self.feedforward_residual(x, self.feedforward)


class Stack(nn.Module):
    """Blocks one after another, then the final norm that the placement asks for."""

    def __init__(self, blocks: Sequence[Block | CrossBlock], norm: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.patterns = [block.pattern for block in blocks]

    def forward(self, x: Hidden, ctx: Context, cache: KVCache | None = None) -> Hidden:
        seen = {pattern: ctx.restrict(pattern) for pattern in self.patterns}
        for i, block in enumerate(self.blocks):
            layer = None if cache is None else cache.layers[i]
            x = block(x, seen[self.patterns[i]], layer)
        return self.norm(x)
