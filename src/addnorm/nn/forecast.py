"""The head of a forecaster: the next steps of every variable, from the patches of a window."""

from collections.abc import Callable
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from addnorm.config import Probability, config
from addnorm.errors import InputError
from addnorm.nn.context import Context
from addnorm.nn.dropout import Dropout
from addnorm.nn.linear import Linear
from addnorm.nn.pooling import RealTokens, mean_of_tokens, real_tokens
from addnorm.nn.types import Hidden

PatchPooling = Literal["flatten", "mean", "last"]
"""How the patches of a window become one vector."""


class ForecastHead(nn.Module):
    """`restore(W drop(pool(x)) + b)`: the next `horizon` steps of each variable.

    Nie et al. 2023, §3.1, whose pool sets the patches side by side ("flatten"). `restore` undoes
    the instance norm of the input (Kim et al. 2022, eq. 3). A row of `x` stands for all variables
    of a window, or with channel independence for one of them.

    Raises `InputError` where a flat head gets another number of patches than it was built for.
    """

    def __init__(
        self, width: int, variables: int, horizon: int, *, pooling: PatchPooling, dropout: float
    ) -> None:
        super().__init__()
        self.horizon = horizon
        self.pool = PATCH_POOLINGS[pooling]
        self.dropout = Dropout(dropout)
        self.proj = Linear(width, variables * horizon)

    def forward(
        self, x: Float[Tensor, "rows seq d_model"], ctx: Context
    ) -> Float[Tensor, "batch variables horizon"]:
        pooled = self.pool(x, real_tokens(x, ctx))
        if pooled.shape[-1] != self.proj.in_features:
            n, most = x.shape[1], self.proj.in_features // x.shape[2]
            raise InputError(
                f"the series makes {n} patches, and the head reads {most}: give as many steps as "
                "model.input.look_back"
            )
        steps = self.proj(self.dropout(pooled))
        if ctx.statistics is None:
            return steps.unflatten(-1, (-1, self.horizon))
        n_series, n_variables, _ = ctx.statistics.mean.shape
        return ctx.statistics.restored(steps.view(n_series, n_variables, self.horizon))


@config
class ForecastHeadConfig:
    """The next `horizon` steps of every variable, for an encoder that reads series."""

    task: ClassVar[str] = "forecasting"

    kind: Literal["forecast"] = "forecast"
    horizon: PositiveInt = 96
    """The number of time steps that are forecast at once."""
    pooling: PatchPooling = "flatten"
    """How patches become one vector: side by side, their mean, or the last one."""
    dropout: Probability = 0.0
    """The dropout rate before the forecast."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """No examples here: it needs an input of series, and is tested with one."""
        return {}

    def conflict(self, around: Any) -> str | None:
        """A forecast head needs series, of known length if it is flat, and no early exits."""
        if around.kind != "encoder" or around.input.kind != "series":
            return (
                "a forecast head needs model.kind = 'encoder' with model.input.kind = 'series': it "
                "forecasts the series that the model reads"
            )
        if around.input.look_back is None:
            return (
                "model.input.look_back is missing: how many steps of the past a forecast is made "
                "from, such as 336"
            )
        if around.exits:
            return "a forecast has no early exits: leave model.exits out"
        return None

    def build(self, d_model: int, n_outputs: int, n_patches: int = 1) -> ForecastHead:
        """The head for `n_outputs` variables in a row, of a window of `n_patches`."""
        width = n_patches * d_model if self.pooling == "flatten" else d_model
        return ForecastHead(
            width, n_outputs, self.horizon, pooling=self.pooling, dropout=self.dropout
        )


def _flat(x: Hidden, valid: RealTokens) -> Float[Tensor, "batch features"]:
    return torch.where(valid, x, 0.0).flatten(1)


def _last(x: Hidden, valid: RealTokens) -> Float[Tensor, "batch features"]:
    last = (valid.sum(1) - 1).clamp(min=0)[:, None].expand(-1, 1, x.shape[-1])
    return x.gather(1, last)[:, 0]


PATCH_POOLINGS: dict[PatchPooling, Callable[[Tensor, Tensor], Tensor]] = {
    "flatten": _flat,
    "mean": mean_of_tokens,
    "last": _last,
}
