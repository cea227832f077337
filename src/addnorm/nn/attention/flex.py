"""FlexAttention: a kernel compiled for each mask and bias (Dong et al. 2024, arXiv 2412.05496)."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Literal

import torch
from torch import Tensor, nn

from addnorm import compiler
from addnorm.config import config
from addnorm.nn.attention.core import SDPACore, Weights, fused
from addnorm.nn.masks import Causal, Dense, Evaluated, Full, Tiled
from addnorm.nn.positions.position import Bias, PairBias
from addnorm.nn.types import HeadShape, Keys, Queries


class FlexCore(SDPACore):
    """`softmax(scale · kᵀ W q + bias) v` on a GPU in one kernel (Dong et al. 2024, §3).

    For any mask, and for biases that are functions of one pair, such as ALiBi's and T5's. Dropout,
    other biases (Transformer-XL) and everything on a CPU are computed by `SDPACore`.
    """

    def forward(
        self, q: Queries, k: Keys, v: Keys, mask: Evaluated, bias: Bias | None = None
    ) -> Queries:
        dropped = self.training and self.dropout > 0.0
        if q.device.type == "cpu" or dropped or not isinstance(bias, PairBias | None):
            return super().forward(q, k, v, mask, bias)
        return self.fused(q, k, v, mask, bias)

    def weights(self, q: Queries, k: Keys, mask: Evaluated, bias: Bias | None = None) -> Weights:
        """The attention weights of this score, which the kernel does not return."""
        return super().weights(q, k, mask, bias)

    def fused(
        self, q: Queries, k: Keys, v: Keys, mask: Evaluated, bias: PairBias | None = None
    ) -> Queries:
        """Compute attention by the FlexAttention kernel."""
        if self.score is None:
            return fused_flex_attention(q, k, v, mask, bias)
        q, scale = self.score.queries(q), self.score.scale
        return fused_flex_attention(q, k, v, mask, bias, scale)


@config
class FlexCoreConfig:
    """FlexAttention on a GPU, with memory linear in the length for every mask, ALiBi and T5."""

    kind: Literal["flex"] = "flex"

    def build(self, heads: HeadShape, score: nn.Module, dropout: float, layer: int) -> FlexCore:
        return FlexCore(fused(score), dropout=dropout)


def fused_flex_attention(
    q: Queries,
    k: Keys,
    v: Keys,
    mask: Evaluated,
    bias: PairBias | None = None,
    scale: float | None = None,
) -> Queries:
    """`softmax(scale · q kᵀ + bias) v` in one kernel, with memory linear in the length.

    Memory is linear in the backward pass too. The mask is evaluated per pair, fully masked blocks
    are skipped, and the bias is computed inside the kernel; a query that may attend to nothing
    gives zeros. `scale` is `1/√d_head` by default. On a CPU this is torch's eager definition,
    without gradients.
    """
    return _kernel(q.device.type)(
        *(q, k, v),
        score_mod=None if bias is None else _score_mod(bias),
        block_mask=_blocks(mask, q.shape[0], q.shape[2], k.shape[2], q.device),
        scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )


def _score_mod(bias: PairBias) -> Callable[..., Tensor]:
    """The bias as a FlexAttention `score_mod`: a function of a score and its indices."""
    at = bias.at
    return lambda score, row, head, i, j: score + at(row, head, i, j).to(score.dtype)


@cache
def _kernel(device: str) -> Any:
    from torch.nn.attention.flex_attention import flex_attention  # imports torch's compiler

    return flex_attention if device == "cpu" else compiler.compile(flex_attention)


@lru_cache(maxsize=2)  # all layers of a forward pass share a mask
def _blocks(mask: Evaluated, batch: int, n_q: int, n_kv: int, device: torch.device) -> Any:
    """The block mask for FlexAttention; None where every pair is allowed."""
    from torch.nn.attention.flex_attention import create_block_mask

    if isinstance(mask, Full):
        return None
    rows = None if isinstance(mask, Causal) else batch
    with torch.inference_mode(False):  # a mask cached during validation is reused in training
        return create_block_mask(
            lambda row, head, i, j: _allows(mask, row, i, j), rows, None, n_q, n_kv, device=device
        )


def _allows(mask: Causal | Dense | Tiled, row: Tensor, i: Tensor, j: Tensor) -> Tensor:
    match mask:
        case Causal():
            return j <= i
        case Dense(allowed):
            return allowed[row if allowed.shape[0] > 1 else row * 0, 0, i, j]
        case Tiled():
            return mask.allows(row, mask.q_slots[i], mask.kv_slots[j])
