"""Reversible instance normalisation of time series: each window by its own statistics (RevIN)."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from addnorm.nn.functional import at_least_float32

InstanceNormName = Literal["none", "instance", "instance_last"]
"""Whether a window is normalised, and by subtracting its mean or its last value."""

Affine = Literal["none", "learned"]
"""Whether a learned gain and bias of each channel follow the normalisation."""


@dataclass(frozen=True)
class WindowStatistics:
    """The mean and deviation used to normalise each window; `restored` undoes it."""

    mean: Float[Tensor, "batch channels 1"]
    deviation: Float[Tensor, "batch channels 1"]

    def normalised(
        self, series: Float[Tensor, "batch channels time"]
    ) -> Float[Tensor, "batch channels time"]:
        """`(x - mean) / deviation`, in float32 or wider (Kim et al. 2022, eq. 2)."""
        return ((at_least_float32(series) - self.mean) / self.deviation).to(series.dtype)

    def restored(
        self, series: Float[Tensor, "batch channels horizon"]
    ) -> Float[Tensor, "batch channels horizon"]:
        """`y · deviation + mean`, in float32 or wider (Kim et al. 2022, eq. 3)."""
        return (at_least_float32(series) * self.deviation + self.mean).to(series.dtype)


class InstanceNorm(nn.Module):
    """`γ (x - c) / √(σ² + ε) + β`, with `c` and `σ` of each window (Kim et al. 2022, eq. 1 and 2).

    `σ` is the deviation of the real steps from their mean, biased. `c` is that mean, or with
    `"instance_last"` the last real value; with `"none"` the window stays as it is. `γ` and `β` are
    learned for each channel with `affine = "learned"`, else 1 and 0. The statistics that come with
    the result undo all of it, `γ` and `β` included.
    """

    def __init__(
        self, channels: int, norm: InstanceNormName, affine: Affine = "none", eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.statistics = STATISTICS[norm]
        self.eps = eps
        learned = affine == "learned"
        self.gain = nn.Parameter(torch.ones(channels)) if learned else None
        self.bias = nn.Parameter(torch.zeros(channels)) if learned else None

    def forward(
        self,
        series: Float[Tensor, "batch channels time"],
        valid: Bool[Tensor, "batch 1 time"],
    ) -> tuple[Float[Tensor, "batch channels time"], WindowStatistics]:
        """Normalise; `series` is finite, and zero where it is not `valid`."""
        statistics = self.statistics(at_least_float32(series), valid, self.eps)
        if self.gain is not None and self.bias is not None:
            gain, bias = self.gain[:, None], self.bias[:, None]
            deviation = statistics.deviation / gain
            statistics = WindowStatistics(statistics.mean - bias * deviation, deviation)
        # A gain must not make the padding large.
        return torch.where(valid, statistics.normalised(series), 0.0), statistics


def unchanged_statistics(
    series: Float[Tensor, "batch channels time"], valid: Bool[Tensor, "batch 1 time"], eps: float
) -> WindowStatistics:
    """Mean 0 and deviation 1."""
    zero = torch.zeros_like(series[..., :1])
    return WindowStatistics(zero, torch.ones_like(zero))


def mean_statistics(
    series: Float[Tensor, "batch channels time"], valid: Bool[Tensor, "batch 1 time"], eps: float
) -> WindowStatistics:
    """`μ` and `√(σ² + ε)` over the real steps of each channel, biased (Kim et al. 2022, eq. 1)."""
    n = valid.sum(-1, keepdim=True).clamp(min=1)
    mean = torch.where(valid, series, 0.0).sum(-1, keepdim=True) / n
    centred = torch.where(valid, series - mean, 0.0)
    return WindowStatistics(mean, (centred.square().sum(-1, keepdim=True) / n + eps).sqrt())


def last_statistics(
    series: Float[Tensor, "batch channels time"], valid: Bool[Tensor, "batch 1 time"], eps: float
) -> WindowStatistics:
    """The last real value, and `√(σ² + ε)` (Kim et al. 2022, code: `subtract_last`)."""
    last = (valid.sum(-1, keepdim=True) - 1).clamp(min=0).expand(-1, series.shape[1], -1)
    deviation = mean_statistics(series, valid, eps).deviation
    return WindowStatistics(series.gather(-1, last), deviation)


STATISTICS = {
    "none": unchanged_statistics,
    "instance": mean_statistics,
    "instance_last": last_statistics,
}
