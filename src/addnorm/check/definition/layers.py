"""The definition of norms and feed-forward layers, a line or two each."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

Weights = Mapping[str, Tensor]
Tokens = Float[Tensor, "seq _width"]
Observed = dict[Tensor, tuple[Tensor, Tensor]]
"""Mean and unbiased variance that each batch norm saw in training, by its running mean."""


def under(weights: Weights, path: str) -> Weights:
    """The weights of one module, by their names within it."""
    start = path + "."
    return {name.removeprefix(start): w for name, w in weights.items() if name.startswith(start)}


def linear(weights: Weights, name: str, x: Tokens) -> Tokens:
    """`x Wᵀ + b`, or without b where there is none."""
    y = x @ weights[f"{name}.weight"].T
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def normalised(
    config: Any, weights: Weights, x: Tokens, observed: Observed | None = None
) -> Tokens:
    """The norm of every token; in training, `observed` is given and batch norm adds to it."""
    if config is None:
        return x
    eps, gain = config.eps, weights["weight"]
    match config.kind:
        case "layernorm":  # Ba et al. 2016, eq. 3
            mean = x.mean(1, keepdim=True)
            variance = ((x - mean) ** 2).mean(1, keepdim=True)
            return gain * (x - mean) / (variance + eps).sqrt() + weights.get("bias", 0.0)
        case "rmsnorm":  # Zhang & Sennrich 2019, eq. 4
            return gain * x / ((x**2).mean(1, keepdim=True) + eps).sqrt()
        case "offset_rmsnorm":  # Gemma Team 2024
            return (1 + gain) * x / ((x**2).mean(1, keepdim=True) + eps).sqrt()
        case "scalenorm":  # Nguyen & Salazar 2019, §2.2
            length = (x**2).sum(1, keepdim=True).sqrt()
            return gain * x / length.clamp(min=eps)
        case "batchnorm":  # Ioffe & Szegedy 2015, alg. 1 and 2
            mean, variance = weights["running_mean"], weights["running_var"]
            if observed is not None:
                mean = x.mean(0)
                variance = ((x - mean) ** 2).mean(0)
                observed[weights["running_mean"]] = mean, variance * len(x) / (len(x) - 1)
            return gain * (x - mean) / (variance + eps).sqrt() + weights["bias"]
        case _:
            raise NotImplementedError(config.kind)


def feedforward(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """The feed-forward layer of every token."""
    match config.kind:
        case "mlp":  # Vaswani et al. 2017, §3.3
            return linear(weights, "down_proj", activated(config, linear(weights, "up_proj", x)))
        case "gated":  # Shazeer 2020, eq. 6
            gate = activated(config, linear(weights, "gate_proj", x))
            return linear(weights, "down_proj", gate * linear(weights, "up_proj", x))
        case "moe":
            experts = [
                feedforward(config.expert, under(weights, f"experts.{e}"), x)
                for e in range(config.n_experts)
            ]
            gates = routed(linear(weights, "router", x), config.top_k)
            return sum(gates[:, e, None] * y for e, y in enumerate(experts))  # pyright: ignore[reportReturnType]
        case _:
            raise NotImplementedError(config.kind)


def routed(logits: Tokens, top_k: int) -> Float[Tensor, "seq n_experts"]:
    """What each token takes of each expert: its share among the `top_k` most probable, else zero.

    Jiang et al. 2024, §2.1; one expert alone counts by its probability (Fedus et al. 2022, eq. 2).
    """
    probability = torch.exp(logits) / torch.exp(logits).sum(1, keepdim=True)
    rank = (probability[:, None, :] > probability[:, :, None]).sum(2)  # how many are more probable
    chosen = torch.where(rank < top_k, probability, 0.0)
    return chosen if top_k == 1 else chosen / chosen.sum(1, keepdim=True)


def activated(config: Any, x: Tokens) -> Tokens:
    """The activation function of every feature."""
    match config.activation:
        case "relu":
            return torch.where(x > 0, x, 0.0)
        case "squared_relu":  # So et al. 2021, §4
            return torch.where(x > 0, x, 0.0) ** 2
        case "gelu":  # Hendrycks & Gimpel 2016, eq. 1: x Φ(x)
            return x * (1 + torch.erf(x / math.sqrt(2))) / 2
        case "gelu_tanh":  # … and eq. 2
            return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2
        case "silu":
            return x / (1 + torch.exp(-x))
        case "sigmoid":
            return 1 / (1 + torch.exp(-x))
        case _:
            raise NotImplementedError(config.activation)
