"""The definitions of feed-forward layers, `f(config, weights, x)` with `x` of `[seq, width]`."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.layers import Tokens, Weights, activated, linear, under
from addnorm.nn.feedforward import FeedForwardConfig, GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig


def mlp(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Vaswani et al. 2017, §3.3."""
    return linear(weights, "down_proj", activated(config.activation, linear(weights, "up_proj", x)))


def gated(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Shazeer 2020, eq. 6."""
    gate = activated(config.activation, linear(weights, "gate_proj", x))
    return linear(weights, "down_proj", gate * linear(weights, "up_proj", x))


def mixture_of_experts(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Shazeer et al. 2017, eq. 1."""
    gates = routed(linear(weights, "router", x), config.top_k)
    outputs = [
        feedforward(config.expert, under(weights, f"experts.{e}"), x)
        for e in range(config.n_experts)
    ]
    return torch.stack([gates[:, e, None] * y for e, y in enumerate(outputs)]).sum(0)


def routed(logits: Tokens, top_k: int) -> Float[Tensor, "seq n_experts"]:
    """The gate of each token for each expert: normalised over the `top_k` best, zero elsewhere.

    Jiang et al. 2024, §2.1; with `top_k = 1`, the gate is the probability itself (Fedus et al.
    2022, eq. 2).
    """
    probability = torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)
    rank = (probability[:, None, :] > probability[:, :, None]).sum(2)  # more probable experts
    chosen = torch.where(rank < top_k, probability, 0.0)
    return chosen if top_k == 1 else chosen / chosen.sum(1, keepdim=True)


FEEDFORWARDS = Definitions[Callable[[Any, Weights, Tokens], Tokens]](
    "feedforward",
    "feedforward.py",
    {
        FeedForwardConfig: mlp,
        GatedFeedForwardConfig: gated,
        MixtureOfExpertsConfig: mixture_of_experts,
    },
)


def feedforward(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Apply the feed-forward layer."""
    return FEEDFORWARDS.of(config)(config, weights, x)
