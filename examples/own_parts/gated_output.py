"""An operation of your own on attention's output: a gate (Qiu et al. 2025).

    addnorm check --part gated_output:GateConfig --definition gated_output:gate
    addnorm train my.toml --import gated_output.py \
        --model.attention.output gated_output:GateConfig
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Gate(nn.Module):
    """`heads ⊙ σ(x W_g)`, one gate for each feature of a head (Qiu et al. 2025, §2.2)."""

    def __init__(self, d_model: int, n_heads: int, d_head: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.proj = nn.Linear(d_model, n_heads * d_head, bias=False)

    def forward(self, heads: Tensor, x: Tensor) -> Tensor:
        """`heads` is `[batch, heads, seq, d_head]`, `x` is `[batch, seq, d_model]`."""
        gates = torch.sigmoid(self.proj(x)).unflatten(-1, (self.n_heads, -1))
        return heads * gates.transpose(1, 2)


@dataclass(frozen=True)
class GateConfig:
    """Nothing to choose."""

    def build(self, d_model: int, heads, layer: int) -> Gate:
        return Gate(d_model, heads.n_heads, heads.d_head)


def gate(config, weights, heads, x):
    """The definition: the outputs of all heads, each `[seq, d_head]`, in float64."""
    gates = (1 / (1 + torch.exp(-x @ weights["proj.weight"].T))).chunk(len(heads), dim=1)
    return [head * gate for head, gate in zip(heads, gates, strict=True)]
