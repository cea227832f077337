"""Value residual: attention also reads the values of the first layer."""

from typing import ClassVar, Literal

import torch
from torch import nn

from addnorm.nn.splits import Splits
from addnorm.nn.types import Heads

ValueResidualName = Literal["fixed", "learned", "interpolated"]
"""How the values of the first layer and a layer's own are weighed."""


class FixedValueResidual(nn.Module):
    """`(v_1 + v_l) / 2`: the mean of the first layer's values and those of layer `l`.

    Identity-ResFormer (Zhou et al. 2024, arXiv 2410.17897, §3.2).
    """

    splits: ClassVar[Splits] = {}

    def forward(self, v: Heads, first: Heads) -> Heads:
        return (first + v) / 2


class LearnedValueResidual(nn.Module):
    """`λ_1 v_1 + λ_2 v_l`, with two learned numbers in each layer, a half at the start.

    Learnable-ResFormer (Zhou et al. 2024, arXiv 2410.17897, §3.2).
    """

    splits: ClassVar[Splits] = {}

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.empty(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the mean."""
        self.weights.data.fill_(0.5)

    def forward(self, v: Heads, first: Heads) -> Heads:
        of_first, own = self.weights.to(v.dtype)
        return of_first * first + own * v


class InterpolatedValueResidual(nn.Module):
    """`λ v_1 + (1 - λ) v_l`, with one learned number in each layer, a half at the start.

    As in the speed runs of nanoGPT (Jordan et al. 2024, modded-nanogpt).
    """

    splits: ClassVar[Splits] = {}

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as the mean."""
        self.weight.data.fill_(0.5)

    def forward(self, v: Heads, first: Heads) -> Heads:
        return v + self.weight.to(v.dtype) * (first - v)


ValueResidual = FixedValueResidual | LearnedValueResidual | InterpolatedValueResidual


def build_value_residual(name: ValueResidualName) -> ValueResidual:
    """The value residual of a layer after the first."""
    match name:
        case "fixed":
            return FixedValueResidual()
        case "learned":
            return LearnedValueResidual()
        case "interpolated":
            return InterpolatedValueResidual()
