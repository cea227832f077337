"""The definitions of attention, one head at a time, and of the operations on its output."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.checking.definition.cores import AttentionMask, Heads, Keys, Queries, mixed
from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.layers import Tokens, Weights, linear, sigmoid, under
from addnorm.checking.definition.norms import normalised
from addnorm.checking.definition.positions import Head, bias, met, rotated
from addnorm.checking.definition.scores import Pairs, scale, scored
from addnorm.checking.definition.texts import MixerContext
from addnorm.nn.attention import DifferentialOutputConfig, GatedOutputConfig


def self_attention(config: Any, weights: Weights, x: Tokens, context: MixerContext) -> Tokens:
    """`concat(heads) W_o` with self-attention (Vaswani et al. 2017, §3.2.2)."""
    texts, position = context.texts, context.position
    position_weights, score_weights = under(weights, "position"), under(weights, "core.score")
    # Segment memory contributes keys and values, but gets no gradient.
    source = torch.where(texts.is_latest()[:, None], x, x.detach())

    def turned(name: str, heads: list[Tensor]) -> list[Tensor]:
        heads = [rotated(position, position_weights, y, texts) for y in heads]
        if config.qk_norm_after == "rotation":
            return [normalised(config.qk_norm, under(weights, name), y) for y in heads]
        return heads

    q = turned("rotated_q_norm", queries_of(config, weights, x))
    if config.kv_layers_back is not None:  # Brandon et al. 2024, §3
        k, v = context.earlier[context.layer - config.kv_layers_back]
    else:
        k, v = keys_values_of(config, weights, source)
        k = turned("rotated_k_norm", k)
        if config.value_residual is not None and context.layer > 0:
            v = with_first(config.value_residual, weights, v, context.earlier[0][1])
        context.earlier[context.layer] = k, v

    def score(h: int, shared: int) -> Pairs:
        head = Head(
            number=h,
            n_heads=config.n_heads,
            texts=texts,
            causal=context.causal,
            scale=scale(config.score, q[h].shape[1]),
            keys=k[shared],
            kv_number=shared,
            attention=weights,
        )
        queries = met(position, position_weights, q[h], head)
        scores = scored(config.score, score_weights, h, queries, k[shared])
        return scores + bias(position, position_weights, q[h], head)

    seen = texts.seen(causal=context.causal, pattern=config.pattern)
    heads = Heads(q=q, k=k, v=v, score=score, seen=seen, layer=context.layer)
    return _merged(config, weights, heads, x)


def cross_attention(
    config: Any, weights: Weights, x: Queries, memory: Keys, seen: AttentionMask, layer: int
) -> Queries:
    """`concat(heads) W_o` with cross-attention to a memory, without positions."""
    config = replace(config, qk_norm_after="projection")
    q, k, v = heads_of(config, weights, x, memory)

    def score(h: int, shared: int) -> Pairs:
        return scored(config.score, under(weights, "core.score"), h, q[h], k[shared])

    heads = Heads(q=q, k=k, v=v, score=score, seen=seen, layer=layer)
    return _merged(config, weights, heads, x)


def _merged(config: Any, weights: Weights, heads: Heads, x: Queries) -> Queries:
    outputs = mixed(config.core, under(weights, "core"), heads)
    outputs = after_heads(config.output, under(weights, "output"), outputs, x)
    return linear(weights, "out_proj", torch.cat(list(outputs), dim=1))


def heads_of(
    config: Any, weights: Weights, x: Queries, source: Keys
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The queries of every head, with the keys and values of every key/value head."""
    return queries_of(config, weights, x), *keys_values_of(config, weights, source)


def queries_of(config: Any, weights: Weights, x: Queries) -> list[Tensor]:
    """The queries of every head."""
    return _normed(config, weights, "q_norm", _split(config, weights, "q_proj", x, x.shape[1]))


def keys_values_of(
    config: Any, weights: Weights, source: Keys
) -> tuple[list[Tensor], list[Tensor]]:
    """The keys and values of every key/value head."""
    width = source.shape[1]
    keys = _normed(config, weights, "k_norm", _split(config, weights, "k_proj", source, width))
    name = "k_proj" if config.values == "keys" else "v_proj"  # Gemma 4 (Google 2026), code
    values = _split(config, weights, name, source, width)
    return keys, [normalised(config.v_norm, under(weights, "v_norm"), v) for v in values]


def _split(
    config: Any, weights: Weights, name: str, y: Float[Tensor, "seq _width"], d_model: int
) -> list[Tensor]:
    """Split a projection into heads."""
    return list(linear(weights, name, y).split(config.d_head or d_model // config.n_heads, dim=1))


def _normed(config: Any, weights: Weights, name: str, heads: list[Tensor]) -> list[Tensor]:
    """The heads of queries or keys after the norm that precedes the rotation, if there is one."""
    if config.qk_norm_after == "rotation":
        return heads
    if config.qk_norm_over == "heads":  # OLMo Team 2024, §3.3
        together = torch.cat(heads, dim=1)
        normed = normalised(config.qk_norm, under(weights, f"{name}.norm"), together)
        return list(normed.split(heads[0].shape[1], dim=1))
    # Henry et al. 2020
    return [normalised(config.qk_norm, under(weights, name), head) for head in heads]


def with_first(
    name: str, weights: Weights, values: list[Tensor], first: list[Tensor]
) -> list[Tensor]:
    """The sum of a layer's values and the first layer's, weighted (Zhou et al. 2024, §3.2)."""
    match name:
        case "fixed":
            of_first, own = 0.5, 0.5
        case "learned":
            of_first, own = weights["value_residual.weights"]
        case _:
            of_first = weights["value_residual.weight"]
            own = 1 - of_first
    return [of_first * v_1 + own * v for v_1, v in zip(first, values, strict=True)]


def gated(config: Any, weights: Weights, heads: Sequence[Tensor], x: Tokens) -> list[Tensor]:
    """A gate for each feature, or for each head (Qiu et al. 2025, §2.2)."""
    gates = sigmoid(linear(weights, "proj", x)).chunk(len(heads), dim=1)
    return [head * gate for head, gate in zip(heads, gates, strict=True)]


def difference(config: Any, weights: Weights, heads: Sequence[Tensor], x: Tokens) -> list[Tensor]:
    """The difference of heads 2p and 2p+1, the outputs of pair p (Ye et al. 2026)."""
    strength = sigmoid(linear(weights, "proj", x))
    return [
        heads[2 * p] - strength[:, p : p + 1] * heads[2 * p + 1] for p in range(len(heads) // 2)
    ]


OUTPUTS = Definitions[Callable[[Any, Weights, Sequence[Tensor], Tokens], list[Tensor]]](
    "output", "attention.py", {GatedOutputConfig: gated, DifferentialOutputConfig: difference}
)


def after_heads(
    config: Any, weights: Weights, heads: Sequence[Tensor], x: Tokens
) -> Sequence[Tensor]:
    """Apply the operation on the heads' outputs, if there is one."""
    return heads if config is None else OUTPUTS.of(config)(config, weights, heads, x)
