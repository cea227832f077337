"""Where the norm stands around a sublayer and its residual: the placement, one line each."""

from collections.abc import Callable
from typing import Annotated, Literal

from jaxtyping import Float
from pydantic import Field
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.dropout import Dropout
from addnorm.nn.norms import NormConfig

Sublayer = Callable[[Float[Tensor, "batch seq d_model"]], Float[Tensor, "batch seq d_model"]]


class PostNorm(nn.Module):
    """`norm(x + drop(f(x)))`: the original Transformer and BERT (Vaswani et al. 2017, §3.1)."""

    def __init__(self, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], f: Sublayer
    ) -> Float[Tensor, "batch seq d_model"]:
        return self.norm(x + self.dropout(f(x)))


@config
class PostNormConfig:
    """The norm after the sum."""

    kind: Literal["post"] = "post"

    def build(self, d_model: int, norm: NormConfig, dropout: float) -> PostNorm:
        return PostNorm(norm.build(d_model), dropout)

    def build_final(self, d_model: int, norm: NormConfig) -> nn.Module:
        """What follows the last layer: nothing, for every sublayer already ends in a norm."""
        return nn.Identity()


class PreNorm(nn.Module):
    """`x + drop(f(norm(x)))`: GPT-2, LLaMA, ViT (Xiong et al. 2020, fig. 1b); an identity path."""

    def __init__(self, norm: nn.Module, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = norm
        self.dropout = Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "batch seq d_model"], f: Sublayer
    ) -> Float[Tensor, "batch seq d_model"]:
        return x + self.dropout(f(self.norm(x)))


@config
class PreNormConfig:
    """The norm before the sublayer."""

    kind: Literal["pre"] = "pre"

    def build(self, d_model: int, norm: NormConfig, dropout: float) -> PreNorm:
        return PreNorm(norm.build(d_model), dropout)

    def build_final(self, d_model: int, norm: NormConfig) -> nn.Module:
        """What follows the last layer: one norm, for the residual stream itself has none."""
        return norm.build(d_model)


Residual = PostNorm | PreNorm
"""A placement, built."""

ResidualConfig = Annotated[PostNormConfig | PreNormConfig, Field(discriminator="kind")]
"""Every placement there is."""
