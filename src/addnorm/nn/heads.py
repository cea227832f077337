"""Heads: hidden states to the logits of tokens, of a class, of tags, or to vectors themselves."""

from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import Probability, config
from addnorm.nn.context import Context
from addnorm.nn.dropout import Dropout

Hidden = Float[Tensor, "batch seq d_model"]


class TokenHead(nn.Module):
    """`x Wᵀ` for every token; `W` may be the embedding table itself (Press & Wolf 2017)."""

    def __init__(self, d_model: int, n_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_outputs, d_model))

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch seq vocab"]:
        return F.linear(x, self.weight)

    def tie(self, table: nn.Embedding) -> None:
        """Share the embedding table from now on."""
        self.weight = nn.Parameter(table.weight)
        table.weight = self.weight


@config
class TokenHeadConfig:
    """`tied` shares the embedding table."""

    kind: Literal["token"] = "token"
    tied: bool = True

    def build(self, d_model: int, n_outputs: int) -> TokenHead:
        return TokenHead(d_model, n_outputs)


class ClassificationHead(nn.Module):
    """`W drop(pool(x)) + b` for the whole sequence (Devlin et al. 2019, §4.1).

    Padding takes no part in the pool.
    """

    def __init__(
        self,
        d_model: int,
        n_outputs: int,
        *,
        pooling: Literal["mean", "max", "first"] = "mean",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.pool = POOLINGS[pooling]
        self.dropout = Dropout(dropout)
        self.proj = nn.Linear(d_model, n_outputs)

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch classes"]:
        valid = x.new_ones(x.shape[:2], dtype=torch.bool) if ctx.valid is None else ctx.valid
        return self.proj(self.dropout(self.pool(x, valid[..., None])))


@config
class ClassificationHeadConfig:
    """One class for the whole text."""

    kind: Literal["classification"] = "classification"
    pooling: Literal["mean", "max", "first"] = "mean"
    dropout: Probability = 0.0

    def build(self, d_model: int, n_outputs: int) -> ClassificationHead:
        return ClassificationHead(d_model, n_outputs, pooling=self.pooling, dropout=self.dropout)


class TaggingHead(nn.Module):
    """`W drop(x) + b` for every token (Devlin et al. 2019, §5.3)."""

    def __init__(self, d_model: int, n_outputs: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.proj = nn.Linear(d_model, n_outputs)

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch seq tags"]:
        return self.proj(self.dropout(x))


@config
class TaggingHeadConfig:
    """One tag for every token."""

    kind: Literal["tagging"] = "tagging"
    dropout: Probability = 0.0

    def build(self, d_model: int, n_outputs: int) -> TaggingHead:
        return TaggingHead(d_model, n_outputs, dropout=self.dropout)


class PoolerHead(nn.Module):
    """`tanh(W x_first + b)`: one vector for the whole sequence (Devlin et al. 2019, §3)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "batch d_model"]:
        valid = x.new_ones(x.shape[:2], dtype=torch.bool) if ctx.valid is None else ctx.valid
        return self.proj(_first(x, valid[..., None])).tanh()


@config
class PoolerHeadConfig:
    """A vector of the first token."""

    kind: Literal["pooler"] = "pooler"

    def build(self, d_model: int, n_outputs: int) -> PoolerHead:
        return PoolerHead(d_model)


class HiddenHead(nn.Module):
    """`x`: the hidden states as they are."""

    def forward(self, x: Hidden, ctx: Context) -> Hidden:
        return x


@config
class HiddenHeadConfig:
    """No head: a vector for every token."""

    kind: Literal["hidden"] = "hidden"

    def build(self, d_model: int, n_outputs: int) -> HiddenHead:
        return HiddenHead()


HeadConfig = Annotated[
    TokenHeadConfig
    | ClassificationHeadConfig
    | TaggingHeadConfig
    | PoolerHeadConfig
    | HiddenHeadConfig,
    Field(discriminator="kind"),
]
"""Every head there is."""


def _mean(x: Hidden, valid: Tensor) -> Float[Tensor, "batch d_model"]:
    return torch.where(valid, x, 0.0).sum(1) / valid.sum(1).clamp(min=1)


def _max(x: Hidden, valid: Tensor) -> Float[Tensor, "batch d_model"]:
    highest = torch.where(valid, x, torch.finfo(x.dtype).min).amax(1)
    return torch.where(valid.any(1), highest, 0.0)


def _first(x: Hidden, valid: Tensor) -> Float[Tensor, "batch d_model"]:
    first = valid.squeeze(-1).long().argmax(1)
    return x[torch.arange(len(x), device=x.device), first]


POOLINGS = {"mean": _mean, "max": _max, "first": _first}
