"""Positions of your own: KERPLE's logarithmic bias (Chi et al. 2022).

addnorm check --part kerple:LogBiasConfig --definition kerple:log_bias
addnorm train my.toml --import kerple.py --model.position kerple:LogBiasConfig
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from addnorm.nn.positions import Position


class LogBias(Position):
    """Adds `-r₁ log(1 + r₂ |i - j|)` to the scores, `r = exp(raw)` (Chi et al. 2022)."""

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.raw_amplitude = nn.Parameter(torch.zeros(n_heads))
        self.raw_rate = nn.Parameter(torch.full((n_heads,), math.log(0.5)))

    def score_bias(self, q: Tensor, ctx):
        raw = self.raw_amplitude, self.raw_rate
        amplitude, rate = (r.exp()[:, None, None] for r in raw)

        def tile(rows: slice, keys: slice) -> Tensor:
            """The bias of these queries against these keys: `[batch, heads, rows, keys]`."""
            offsets = ctx.positions[:, None, rows, None] - ctx.kv_positions[:, None, None, keys]
            return -amplitude * torch.log1p(rate * offsets.abs())

        return tile


@dataclass(frozen=True)
class LogBiasConfig:
    """Nothing to choose; the sizes around it come in as `context`."""

    def build(self, context) -> LogBias:
        return LogBias(context.n_heads)


def log_bias(config, weights, q, head):
    """The definition: the bias of the scores of one head, pair by pair."""
    r1, r2 = (weights[name][head.number].exp() for name in ("raw_amplitude", "raw_rate"))
    place = torch.tensor(head.texts.place, dtype=torch.float64)
    return -r1 * torch.log(1 + r2 * (place[:, None] - place).abs())
