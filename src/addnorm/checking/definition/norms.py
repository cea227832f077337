"""The definitions of norms, `f(config, weights, x)` with `x` of `[seq, width]`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.layers import Tokens, Weights
from addnorm.nn.norms import (
    BatchNormConfig,
    DynamicErfConfig,
    DynamicTanhConfig,
    LayerNormConfig,
    OffsetRMSNormConfig,
    RMSNormConfig,
    ScaleNormConfig,
)

Observed = dict[Tensor, tuple[Tensor, Tensor, float]]
"""Batch mean, unbiased variance and momentum of each batch norm, keyed by its running mean."""


def layer_norm(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Ba et al. 2016, eq. 3; with an offset gain Parmar et al. 2024, §2.1."""
    mean = x.mean(1, keepdim=True)
    variance = ((x - mean) ** 2).mean(1, keepdim=True)
    normed = (x - mean) / (variance + config.eps).sqrt()
    gain = weights.get("weight", 1.0)
    return (1 + gain if config.gain == "offset" else gain) * normed + weights.get("bias", 0.0)


def rms_norm(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Zhang & Sennrich 2019, eq. 4."""
    return weights.get("weight", 1.0) * x / ((x**2).mean(1, keepdim=True) + config.eps).sqrt()


def offset_rms_norm(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Gemma Team 2024."""
    return (1 + weights["weight"]) * x / ((x**2).mean(1, keepdim=True) + config.eps).sqrt()


def scale_norm(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Nguyen & Salazar 2019, §2.2."""
    return weights["weight"] * x / (x**2).sum(1, keepdim=True).sqrt().clamp(min=config.eps)


def batch_norm(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """With the running statistics (Ioffe & Szegedy 2015, alg. 2)."""
    normed = (x - weights["running_mean"]) / (weights["running_var"] + config.eps).sqrt()
    return weights["weight"] * normed + weights["bias"]


def batch_norm_in_training(config: Any, weights: Weights, x: Tokens, observed: Observed) -> Tokens:
    """With the statistics of the batch, which are recorded (Ioffe & Szegedy 2015, alg. 1)."""
    mean = x.mean(0)
    variance = ((x - mean) ** 2).mean(0)
    unbiased = variance * len(x) / (len(x) - 1)
    observed[weights["running_mean"]] = mean, unbiased, config.momentum
    normed = (x - mean) / (variance + config.eps).sqrt()
    return weights["weight"] * normed + weights["bias"]


def dynamic_tanh(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Zhu et al. 2025, §4."""
    return weights["weight"] * torch.tanh(weights["alpha"] * x) + weights["bias"]


def dynamic_erf(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """Chen et al. 2025 (arXiv 2512.10938)."""
    inner = weights["alpha"] * x + weights["shift"]
    return weights["weight"] * torch.special.erf(inner) + weights["bias"]


NORMS = Definitions[Callable[[Any, Weights, Tokens], Tokens]](
    "norm",
    "norms.py",
    {
        LayerNormConfig: layer_norm,
        RMSNormConfig: rms_norm,
        OffsetRMSNormConfig: offset_rms_norm,
        ScaleNormConfig: scale_norm,
        BatchNormConfig: batch_norm,
        DynamicTanhConfig: dynamic_tanh,
        DynamicErfConfig: dynamic_erf,
    },
)

IN_TRAINING = {BatchNormConfig: batch_norm_in_training}
"""The norms that behave differently in training."""


def normalised(
    config: Any, weights: Weights, x: Tokens, observed: Observed | None = None
) -> Tokens:
    """Apply the norm, or return `x` if `config` is None; `observed` is only given in training."""
    if config is None:
        return x
    if observed is not None and type(config) in IN_TRAINING:
        return IN_TRAINING[type(config)](config, weights, x, observed)
    return NORMS.of(config)(config, weights, x)
