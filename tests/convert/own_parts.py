"""Custom parts for tests, one per family, which no exporter supports."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from addnorm.nn.attention import EagerCore
from addnorm.nn.context import Context
from addnorm.nn.embed import Embedding
from addnorm.nn.heads import TokenHead
from addnorm.nn.masks import Full
from addnorm.nn.norms import NormConfig, RMSNorm
from addnorm.nn.positions import NoPosition, Position
from addnorm.nn.residuals import Depth, PreNorm
from addnorm.nn.types import HeadShape


class HalvedNorm(RMSNorm):
    """A subclass of a norm that is known, half as large."""

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        return 0.5 * super().forward(x, valid)


@dataclass(frozen=True)
class HalvedNormConfig:
    def build(self, d_model: int) -> nn.Module:
        return HalvedNorm(d_model)


class Ramp(Position):
    """Adds the position itself to every feature."""

    def embed(self, x: Tensor, ctx: Context) -> Tensor:
        return x + 0.05 * ctx.positions[..., None].to(x.dtype)

    def in_layer(self, layer: int) -> Position:
        return NoPosition()


@dataclass(frozen=True)
class RampConfig:
    def build(self, context: Any) -> Position:
        return Ramp()


class NegatedDistance(nn.Module):
    """The negative squared distance of queries and keys."""

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return -(q[:, :, :, None] - k[:, :, None]).square().sum(-1)


@dataclass(frozen=True)
class NegatedDistanceConfig:
    def build(self, n_heads: int, d_head: int) -> nn.Module:
        return NegatedDistance()


class Mean(nn.Module):
    """The mean of all tokens so far, in place of attention."""

    pattern = Full()

    def forward(self, x: Tensor, ctx: Context, cache: Any = None) -> Tensor:
        steps = torch.arange(1, x.shape[1] + 1, device=x.device)
        return x.cumsum(1) / steps[:, None]

    def new_cache(self) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class MeanConfig:
    def build(self, d_model: int, position: Position, causal: bool, layer: int) -> nn.Module:
        return Mean()


class HalfResidual(PreNorm):
    """Pre-norm that adds half of what the sublayer says."""

    def forward(self, x: Tensor, f: Any, valid: Tensor | None = None) -> Tensor:
        return x + 0.5 * self.dropout(f(self.norm(x, valid)))


@dataclass(frozen=True)
class HalfResidualConfig:
    def build(self, d_model: int, norm: NormConfig, dropout: float, depth: Depth) -> nn.Module:
        return HalfResidual(norm.build(d_model), dropout)

    def build_final(self, d_model: int, norm: NormConfig) -> nn.Module:
        return norm.build(d_model)


class DoubledCore(EagerCore):
    """Attention whose output counts twice."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return 2 * super().forward(*args, **kwargs)


@dataclass(frozen=True)
class DoubledCoreConfig:
    def build(self, heads: HeadShape, score: nn.Module, dropout: float, layer: int) -> nn.Module:
        return DoubledCore(score)


class Doubled(nn.Module):
    """An operation on attention's output without parameters or settings."""

    def forward(self, heads: Tensor, x: Tensor) -> Tensor:
        return 2 * heads


@dataclass(frozen=True)
class DoubledConfig:
    def build(self, d_model: int, heads: HeadShape, layer: int) -> nn.Module:
        return Doubled()


class NegatedEmbedding(Embedding):
    """An embedding with the sign turned."""

    def forward(self, tokens: Tensor, ctx: Context, types: Tensor | None = None) -> Tensor:
        return -super().forward(tokens, ctx, types)


@dataclass(frozen=True)
class NegatedEmbeddingConfig:
    def build(self, vocab_size: int, d_model: int, position: Position, dropout: float) -> nn.Module:
        return NegatedEmbedding(
            nn.Embedding(vocab_size, d_model), position=position, dropout=dropout
        )


class NegatedHead(TokenHead):
    """A head with the sign turned."""

    def forward(self, x: Tensor, ctx: Context) -> Tensor:
        return -super().forward(x, ctx)


@dataclass(frozen=True)
class NegatedHeadConfig:
    def build(self, d_model: int, n_outputs: int) -> nn.Module:
        head = NegatedHead(d_model, n_outputs)
        nn.init.normal_(head.weight)
        return head
