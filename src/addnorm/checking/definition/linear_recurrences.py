"""The definitions of the gated delta rule, Mamba-2 and short convolutions, token by token."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from addnorm.checking.definition.layers import Tokens, Weights, activated, linear, sigmoid, under
from addnorm.checking.definition.norms import normalised
from addnorm.checking.definition.texts import MixerContext, Texts


def texts_of(texts: Texts) -> Iterator[list[int]]:
    """Yield the tokens of each text."""
    yield from map(texts.tokens, sorted(set(texts.text)))


def convolved(weights: Weights, x: Tokens, texts: Texts) -> Tokens:
    """A causal convolution of each channel alone, with zeros before a text."""
    kernel = weights["conv.weight"][:, 0]
    size = kernel.shape[1]
    rows: list[Any] = [None] * len(texts)
    for tokens in texts_of(texts):
        for p, n in enumerate(tokens):
            y = weights.get("conv.bias", x.new_zeros(len(kernel)))
            for back in range(min(size, p + 1)):
                y = y + kernel[:, size - 1 - back] * x[tokens[p - back]]
            rows[n] = y
    return torch.stack(rows)


def gated_convolution(config: Any, weights: Weights, x: Tokens, context: MixerContext) -> Tokens:
    """A gated convolution of each channel (Liquid AI 2025, LFM2)."""
    inputs = linear(weights, "in_gate_proj", x) * linear(weights, "in_proj", x)
    mixed = convolved(under(weights, "short"), inputs, context.texts)
    return linear(weights, "out_proj", linear(weights, "out_gate_proj", x) * mixed)


def gated_delta(config: Any, weights: Weights, x: Tokens, context: MixerContext) -> Tokens:
    """Yang et al. 2024, eq. 10; with a decay for each key feature in Kimi Team 2025, §3."""
    sizes = config.heads(x.shape[1])
    qkv = torch.cat([linear(weights, f"{name}_proj", x) for name in "qkv"], dim=1)
    qkv = activated("silu", convolved(under(weights, "short"), qkv, context.texts))
    n_keys = sizes.n_key_heads * sizes.d_key
    queries, keys = (
        part.split(sizes.d_key, dim=1) for part in (qkv[:, :n_keys], qkv[:, n_keys : 2 * n_keys])
    )
    values = qkv[:, 2 * n_keys :].split(sizes.d_value, dim=1)
    rates = sigmoid(linear(weights, "rate_proj", x))
    steps = torch.log(1 + torch.exp(linear(weights, "decay_proj", x) + weights["decay_bias"]))
    gates = activated(config.gate, linear(weights, "gate_proj", x)).split(sizes.d_value, dim=1)
    outputs: list[Tensor] = []
    for h, step in enumerate(steps.chunk(sizes.n_heads, dim=1)):
        shared = h // (sizes.n_heads // sizes.n_key_heads)
        decay = torch.exp(-torch.exp(weights["log_speed"][h]) * step)
        read = _read(queries[shared], keys[shared], values[h], (decay, rates[:, h]), context.texts)
        outputs.append(normalised(config.norm, under(weights, "norm"), read) * gates[h])
    return linear(weights, "out_proj", torch.cat(outputs, dim=1))


def _read(
    queries: Tensor, keys: Tensor, values: Tensor, rule: tuple[Tensor, Tensor], texts: Texts
) -> Tensor:
    """The outputs for one head's queries; the rule gives decay and rate at each token."""
    rows: list[Any] = [None] * len(texts)
    for tokens in texts_of(texts):
        state = keys.new_zeros(keys.shape[1], values.shape[1])
        for n in tokens:
            decay, rate = (part[n] for part in rule)
            q, k = (y[n] / (y[n] @ y[n] + 1e-6).sqrt() for y in (queries, keys))
            state = decay[:, None] * state
            state = state + rate * torch.outer(k, values[n] - k @ state)
            rows[n] = (q / math.sqrt(len(q))) @ state
    return torch.stack(rows)


def mamba2(config: Any, weights: Weights, x: Tokens, context: MixerContext) -> Tokens:
    """Dao & Gu 2024, §7.1."""
    width = config.n_heads * config.width(x.shape[1])
    maps = torch.cat([linear(weights, f"{name}_proj", x) for name in "vkq"], dim=1)
    maps = activated("silu", convolved(under(weights, "short"), maps, context.texts))
    shared = config.n_groups * config.d_state
    inputs, writers, readers = (
        part.chunk(n, dim=1)
        for part, n in zip(
            maps.split([width, shared, shared], dim=1),
            (config.n_heads, config.n_groups, config.n_groups),
            strict=True,
        )
    )
    steps = torch.log(1 + torch.exp(linear(weights, "step_proj", x) + weights["step_bias"]))
    outputs: list[Tensor] = []
    for h in range(config.n_heads):
        group = h // (config.n_heads // config.n_groups)
        speed = torch.exp(weights["log_speed"][h])
        rows: list[Any] = [None] * len(x)
        for tokens in texts_of(context.texts):
            state = x.new_zeros(config.d_state, width // config.n_heads)
            for n in tokens:
                state = torch.exp(-speed * steps[n, h]) * state
                state = state + steps[n, h] * torch.outer(writers[group][n], inputs[h][n])
                rows[n] = readers[group][n] @ state + weights["skip"][h] * inputs[h][n]
        outputs.append(torch.stack(rows))
    y, gates = torch.cat(outputs, dim=1), activated("silu", linear(weights, "gate_proj", x))
    y = y * gates if config.order == "gate_norm" else y
    groups = y.chunk(config.n_groups, dim=1)
    normed = [part / ((part**2).mean(1, keepdim=True) + config.eps).sqrt() for part in groups]
    y = weights["norm.weight"] * torch.cat(normed, dim=1)
    return linear(weights, "out_proj", y if config.order == "gate_norm" else y * gates)
