"""KERPLE: a bias that decreases with the logarithm of the distance, learned per head."""

from typing import ClassVar, Literal

import torch
from torch import nn
from torch.nn import functional as F

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.functional import wide_dtype
from addnorm.nn.positions.position import BuildContext, PairBias, Position, distance_bias
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import Queries


class KERPLE(Position):
    """Adds `-r₁ log(1 + r₂ |i - j|)` to the score of position `i` against `j` (Chi et al. 2022).

    The logarithmic kernel of the paper, with learned `r₁, r₂ > 0` for each head, shared by all
    layers. Kept positive by `r = softplus(parameter)`, where the authors' code clamps; they start
    as there, uniform in (0, 2) and (0, 1). Computed in float32, or float64 where the queries are.
    """

    splits: ClassVar[Splits] = {"raw_amplitude": Split(0), "raw_rate": Split(0)}

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.raw_amplitude = nn.Parameter(torch.empty(n_heads))
        self.raw_rate = nn.Parameter(torch.empty(n_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw `r₁` from (0, 2) and `r₂` from (0, 1), uniformly."""
        for raw, highest in ((self.raw_amplitude, 2.0), (self.raw_rate, 1.0)):
            with torch.no_grad():
                raw.uniform_(0.01, highest).expm1_().log_()  # the inverse of softplus

    def score_bias(self, q: Queries, ctx: Context) -> PairBias:
        wide = wide_dtype(q.dtype)
        amplitude = F.softplus(self.raw_amplitude.to(wide))
        rate = F.softplus(self.raw_rate.to(wide))
        return distance_bias(
            ctx, lambda head, distance: -amplitude[head] * torch.log1p(rate[head] * distance)
        )


@config
class KERPLEConfig:
    """Logarithmic biases that are learned; nothing to choose."""

    kind: Literal["kerple"] = "kerple"

    def build(self, build_context: BuildContext) -> KERPLE:
        return KERPLE(build_context.n_heads)
