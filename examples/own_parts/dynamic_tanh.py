"""A norm of your own: Dynamic Tanh (Zhu et al. 2025), which has no statistics.

addnorm check --part dynamic_tanh:TanhNormConfig --definition dynamic_tanh:tanh_norm
addnorm train my.toml --import dynamic_tanh.py --model.norm dynamic_tanh:TanhNormConfig
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class TanhNorm(nn.Module):
    """`γ ⊙ tanh(α x) + β`, α one learned number (Zhu et al. 2025, §4)."""

    def __init__(self, d_model: int, alpha: float) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(alpha))
        self.weight = nn.Parameter(torch.ones(d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, x: Tensor, valid: Tensor | None = None) -> Tensor:
        alpha, weight, bias = (p.to(x.dtype) for p in (self.alpha, self.weight, self.bias))
        return weight * torch.tanh(alpha * x) + bias


@dataclass(frozen=True)
class TanhNormConfig:
    """`alpha` is what α starts at."""

    alpha: float = 0.5

    def build(self, d_model: int) -> TanhNorm:
        return TanhNorm(d_model, self.alpha)


def tanh_norm(config, weights, x):
    """The definition that `addnorm check` holds it against, in float64."""
    z = weights["alpha"] * x
    decayed = torch.exp(-2 * z.abs())  # does not overflow, however large x is
    return weights["weight"] * z.sign() * (1 - decayed) / (1 + decayed) + weights["bias"]
