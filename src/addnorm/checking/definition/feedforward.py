"""The definitions of feed-forward layers, `f(config, weights, x)` with `x` of `[seq, width]`."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.layers import Tokens, Weights, activated, linear, under
from addnorm.nn.feedforward import (
    ClampedFeedForwardConfig,
    FeedForwardConfig,
    GatedFeedForwardConfig,
)
from addnorm.nn.moe import MixtureOfExpertsConfig
from addnorm.nn.no_sublayer import NoFeedForwardConfig


def mlp(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Vaswani et al. 2017, §3.3."""
    inner = linear(weights, "up_proj", x)
    inner = activated(config.activation, inner, under(weights, "activation"))
    return linear(weights, "down_proj", inner)


def gated(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Shazeer 2020, eq. 6."""
    gate = linear(weights, "gate_proj", x)
    gate = activated(config.activation, gate, under(weights, "activation"))
    return linear(weights, "down_proj", gate * linear(weights, "up_proj", x))


def clamped(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """A gate bounded above, times a factor bounded on both sides (OpenAI 2025, §2.2)."""
    gate, up = linear(weights, "gate_proj", x), linear(weights, "up_proj", x)
    gate = activated(config.activation, torch.where(gate > config.limit, config.limit, gate))
    size = torch.where(abs(up) > config.limit, config.limit / abs(up), 1.0)
    return linear(weights, "down_proj", gate * (up * size + config.offset))


def mixture_of_experts(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Shazeer et al. 2017, eq. 1; Dai et al. 2024, §3.2; DeepSeek-AI 2024b, eq. 12–16."""
    logits = linear(weights, "router", x)
    gates = routed(config, logits, weights.get("router.correction", torch.zeros(config.n_experts)))
    outputs = [
        feedforward(config.expert, under(weights, f"experts.{e}"), x)
        for e in range(config.n_experts)
    ]
    y = torch.stack([gates[:, e, None] * y for e, y in enumerate(outputs)]).sum(0)
    if config.shared is None:
        return y
    shared = feedforward(config.shared, under(weights, "shared"), x)
    if not config.shared_gate:
        return y + shared
    return y + shared / (1 + torch.exp(-linear(weights, "shared_gate", x)))


def routed(config: Any, logits: Tokens, correction: Tensor) -> Float[Tensor, "seq n_experts"]:
    """The gate of each token for each expert; zero for experts that the token does not use.

    Normalised over the `top_k` best (Jiang et al. 2024, §2.1); by default with `top_k = 1` the gate
    is the score itself (Fedus et al. 2022, eq. 2). Sigmoids are chosen by their sum with the
    correction, groups by their two best; a softmax's groups by their best expert.
    """
    router, n = config.router, config.n_experts
    if sigmoid := router.kind == "sigmoid":
        scores = 1 / (1 + torch.exp(-logits))
    else:
        shares = torch.exp(logits - logits.max(1, keepdim=True).values)
        scores = shares / shares.sum(1, keepdim=True)
    gates = torch.zeros_like(scores)
    for t, row in enumerate((scores + correction).tolist()):
        groups = [range(g, g + n // router.n_groups) for g in range(0, n, n // router.n_groups)]
        by_best = sorted(groups, key=lambda g: -sum(sorted(row[e] for e in g)[-1 - sigmoid :]))
        room = [e for group in by_best[: router.top_groups] for e in group]
        for e in sorted(room, key=lambda e: -row[e])[: config.top_k]:
            gates[t, e] = scores[t, e]
    if router.normalize or (router.normalize is None and config.top_k > 1):
        gates = gates / gates.sum(1, keepdim=True)
    return router.scale * gates


FEEDFORWARDS = Definitions[Callable[[Any, Weights, Tokens], Tokens]](
    "feedforward",
    "feedforward.py",
    {
        FeedForwardConfig: mlp,
        GatedFeedForwardConfig: gated,
        ClampedFeedForwardConfig: clamped,
        MixtureOfExpertsConfig: mixture_of_experts,
        NoFeedForwardConfig: lambda config, weights, x: torch.zeros_like(x),
    },
)


def feedforward(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Apply the feed-forward layer."""
    return FEEDFORWARDS.of(config)(config, weights, x)
