"""Attention with sinks: a learned logit for each head, by which it may attend to nothing."""

from functools import partial
from typing import ClassVar, Literal

import torch
from torch import nn

from addnorm.config import config
from addnorm.nn.attention.core import Weights, fused
from addnorm.nn.attention.kernels import (
    EVERYTHING,
    allowed_of,
    dot_product_attention,
    shared,
    softmax_with_sinks,
)
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.attention.tiles import in_tiles, is_tiled
from addnorm.nn.functional import wide_dtype
from addnorm.nn.masks import Evaluated
from addnorm.nn.positions.position import Bias
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import HeadShape, Keys, Mixed, Queries, Values


class SinkCore(nn.Module):
    """`softmax([s; scale · kᵀ W q + bias]) [0; v]`: each head has a sink `s`, a learned logit.

    OpenAI 2025 (arXiv 2508.10925), §2.2, after Xiao et al. 2024 (2309.17453), §3.3. A sink is in
    the denominator alone: `out = σ(lse − s) · softmax(scores) v`, where `lse = log Σ exp(scores)`,
    so that the weights of a query sum to less than one. `s = 0` at the start; `s = −∞` is attention
    without sinks. A query that may attend to nothing gives zeros.
    """

    splits: ClassVar[Splits] = {"sinks": Split(0)}

    def __init__(self, score: DotProduct, n_heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.score = score
        self.dropout = dropout
        self.sinks = nn.Parameter(torch.zeros(n_heads))

    def reset_parameters(self) -> None:
        """Set all sinks to zero."""
        nn.init.zeros_(self.sinks)

    def forward(
        self, q: Queries, k: Keys, v: Values, mask: Evaluated, bias: Bias | None = None
    ) -> Mixed:
        score = fused(self.score)
        attend = partial(
            dot_product_attention,
            scale=score.scale,
            dropout=self.dropout if self.training else 0.0,
            sinks=self.sinks,
        )
        q = score.queries(q)
        if is_tiled(q, k, mask, bias):
            return in_tiles(attend, q, k, v, mask, bias)
        return attend(q, k, v, mask, None if bias is None else bias(EVERYTHING, EVERYTHING))

    def weights(self, q: Queries, k: Keys, mask: Evaluated, bias: Bias | None = None) -> Weights:
        """The attention weight of every key; the rest up to one is the sink's weight."""
        scores = fused(self.score)(q, shared(k, q.shape[1]))
        if bias is not None:
            scores = scores + bias(EVERYTHING, EVERYTHING).to(scores.dtype)
        if (allowed := allowed_of(mask, q, k)) is not None:
            scores = scores.masked_fill(~allowed, -torch.inf)
        return softmax_with_sinks(scores, self.sinks, wide_dtype(q.dtype)).to(q.dtype)


@config
class SinkCoreConfig:
    """A learned logit for each head in the denominator of its softmax (OpenAI 2025)."""

    kind: Literal["sinks"] = "sinks"

    def build(self, heads: HeadShape, score: nn.Module, dropout: float, layer: int) -> SinkCore:
        return SinkCore(fused(score), heads.n_heads, dropout=dropout)
