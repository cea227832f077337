"""An attention core of your own that knows its layer: differential attention (Ye et al. 2024).

addnorm check --part differential:DifferenceConfig --definition differential:difference
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from addnorm.nn.attention import EagerCore


class Difference(EagerCore):
    """`(1 - λ₀) norm((softmax(q₁k₁ᵀ/√d) - λ softmax(q₂k₂ᵀ/√d)) v)` (Ye et al. 2024, §2.1)."""

    def __init__(self, score: nn.Module, d_head: int, layer: int) -> None:
        super().__init__(score)
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.vectors = nn.Parameter(0.1 * torch.randn(4, d_head))  # λ_q1, λ_k1, λ_q2, λ_k2
        self.gain = nn.Parameter(torch.ones(2 * d_head))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask, bias=None) -> Tensor:
        return self.combine(self.weights(q, k, mask, bias), v)

    def combine(self, maps: Tensor, v: Tensor) -> Tensor:
        """The outputs from the shown weights, both maps of every pair, for whoever looks inside."""
        q1, k1, q2, k2 = self.vectors
        strength = ((q1 @ k1).exp() - (q2 @ k2).exp() + self.start).to(v.dtype)
        mixed = (maps[:, ::2] - strength * maps[:, 1::2]) @ torch.cat([v[:, ::2], v[:, 1::2]], -1)
        mixed = nn.functional.rms_norm(mixed, self.gain.shape, self.gain.to(v.dtype), 1e-5)
        return ((1 - self.start) * mixed).unflatten(3, (2, -1)).transpose(2, 3).flatten(1, 2)


@dataclass(frozen=True)
class DifferenceConfig:
    """Heads 2i and 2i + 1 are a pair."""

    def conflict(self, heads) -> str | None:
        alone = heads.n_heads % 2 or heads.n_heads != heads.n_kv_heads
        return "heads come in pairs, with keys of their own" if alone else None

    def build(self, heads, score: nn.Module, dropout: float, layer: int) -> Difference:
        return Difference(score, heads.d_head, layer)


def difference(config, weights, heads):
    """The definition, in float64: the outputs of all heads."""
    start, outputs = 0.8 - 0.6 * math.exp(-0.3 * heads.layer), []
    first, second = torch.exp((weights["vectors"][::2] * weights["vectors"][1::2]).sum(1))
    for h in range(0, len(heads.q), 2):
        scores = [heads.score(i, i).masked_fill(~heads.seen, -math.inf) for i in (h, h + 1)]
        maps = scores[0].softmax(1) - (first - second + start) * scores[1].softmax(1)
        mixed = maps @ torch.cat([heads.v[h], heads.v[h + 1]], 1)
        mixed = mixed / ((mixed**2).mean(1, keepdim=True) + 1e-5).sqrt()
        outputs += ((1 - start) * weights["gain"] * mixed).chunk(2, dim=1)
    return outputs
