"""Pooling: a sequence of vectors becomes one, and padding takes no part in it."""

from collections.abc import Callable
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from addnorm.config import WordOrTable
from addnorm.nn.convolution_pooling import ConvolutionPoolingConfig
from addnorm.nn.linear import Linear
from addnorm.nn.types import Hidden

RealTokens = Bool[Tensor, "batch seq 1"]
"""Which tokens are real."""

Pooled = Float[Tensor, "batch d_model"]
"""A vector for each sequence."""


def mean_of_tokens(x: Hidden, valid: RealTokens) -> Pooled:
    """The mean over the real tokens; zero where there are none."""
    return torch.where(valid, x, 0.0).sum(1) / valid.sum(1).clamp(min=1)


def max_of_tokens(x: Hidden, valid: RealTokens) -> Pooled:
    """The maximum over the real tokens; zero where there are none."""
    highest = torch.where(valid, x, torch.finfo(x.dtype).min).amax(1)
    return torch.where(valid.any(1), highest, 0.0)


def first_token(x: Hidden, valid: RealTokens) -> Pooled:
    """The first real token."""
    first = valid.squeeze(-1).long().argmax(1)
    return x[torch.arange(x.shape[0], device=x.device), first]


POOLINGS = {"mean": mean_of_tokens, "max": max_of_tokens, "first": first_token}
"""The poolings without weights."""


class SequencePooling(nn.Module):
    """`Σ_t a_t x_t` with `a = softmax_t(w x_t + b)`: the mean by weights that each token sets.

    SeqPool of Hassani et al. 2021, §3.3, over the real tokens; zero where there are none.
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.score = Linear(d_model, 1)

    def forward(self, x: Hidden, valid: RealTokens) -> Pooled:
        x = torch.where(valid, x, 0.0)
        scores = self.score(x)
        scores = torch.where(valid, scores, torch.finfo(scores.dtype).min)
        weights = scores.softmax(1).to(x.dtype)  # of padding alone they are even, and x is zero
        return (weights.transpose(1, 2) @ x).squeeze(1)


PoolingConfig = Annotated[
    Literal["mean", "max", "first", "seqpool"] | ConvolutionPoolingConfig, WordOrTable()
]
"""Any pooling: one without settings by its name, else its table."""


def build_pooling(
    pooling: PoolingConfig, d_model: int
) -> tuple[nn.Module | Callable[[Hidden, RealTokens], Pooled], int]:
    """A pooling, and the width of the vectors that it gives."""
    if isinstance(pooling, ConvolutionPoolingConfig):
        return pooling.build(d_model), pooling.width
    return SequencePooling(d_model) if pooling == "seqpool" else POOLINGS[pooling], d_model
