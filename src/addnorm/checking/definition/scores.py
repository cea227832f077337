"""The definitions of attention scores, `f(config, weights, h, q, k)` for head `h`."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.layers import Weights
from addnorm.nn.attention import AdditiveConfig, BilinearConfig, DotConfig, ScaledDotConfig

Queries = Float[Tensor, "q_seq _width"]
Keys = Float[Tensor, "kv_seq _width"]
Pairs = Float[Tensor, "q_seq kv_seq"]


@dataclass(frozen=True)
class ScoreDefinition:
    """The `score` of all pairs, and the `scale` of products for a head width."""

    score: Callable[[Any, Weights, int, Queries, Keys], Pairs]
    scale: Callable[[Any, int], float] = lambda config, width: 1.0


def scaled_dot_scale(config: Any, width: int) -> float:
    """Vaswani et al. 2017, eq. 1, or another factor."""
    return 1 / math.sqrt(width) if config.factor is None else config.factor


def scaled_dot(config: Any, weights: Weights, h: int, q: Queries, k: Keys) -> Pairs:
    """Vaswani et al. 2017, eq. 1; with a soft cap as in Gemma Team 2024, §2."""
    scores = q @ k.T * scaled_dot_scale(config, q.shape[1])
    if config.softcap is None:
        return scores
    return config.softcap * torch.tanh(scores / config.softcap)


def dot(config: Any, weights: Weights, h: int, q: Queries, k: Keys) -> Pairs:
    """Luong et al. 2015, §3.1."""
    return q @ k.T


def bilinear(config: Any, weights: Weights, h: int, q: Queries, k: Keys) -> Pairs:
    """`kᵀ W q`: Luong et al. 2015, §3.1."""
    return (k @ weights["weight"][h] @ q.T).T


def additive(config: Any, weights: Weights, h: int, q: Queries, k: Keys) -> Pairs:
    """`vᵀ tanh(W k + U q)`: Bahdanau et al. 2015, appendix A.1.2."""
    keys, queries = k @ weights["key"][h], q @ weights["query"][h]
    return (torch.tanh(queries[:, None] + keys[None, :]) @ weights["vector"][h]).squeeze(-1)


SCORES = Definitions[ScoreDefinition](
    "score",
    "scores.py",
    {
        ScaledDotConfig: ScoreDefinition(scaled_dot, scaled_dot_scale),
        DotConfig: ScoreDefinition(dot),
        BilinearConfig: ScoreDefinition(bilinear),
        AdditiveConfig: ScoreDefinition(additive),
    },
    wrap=lambda own: own if isinstance(own, ScoreDefinition) else ScoreDefinition(own),
)


def scored(config: Any, weights: Weights, h: int, q: Queries, k: Keys) -> Pairs:
    """The scores of all pairs of queries and keys."""
    return SCORES.of(config).score(config, weights, h, q, k)


def scale(config: Any, width: int) -> float:
    """The factor that multiplies products of queries and keys of this width."""
    return SCORES.of(config).scale(config, width)
