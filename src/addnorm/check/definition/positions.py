"""The definition of every position scheme: on embeddings, on queries and keys, or on scores."""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.check.definition.frequencies import rotary_frequencies, rotary_temperature
from addnorm.check.definition.layers import Tokens, Weights
from addnorm.check.definition.texts import Texts

Pairs = Float[Tensor, "seq seq"]


@cache
def sinusoid(place: float, width: int, theta: float = 10000.0) -> tuple[float, ...]:
    """`PE(p, 2i) = sin(p θ^(-2i/D))`, `PE(p, 2i+1) = cos` of it (Vaswani et al. 2017, §3.5)."""
    waves: list[float] = []
    for i in range(math.ceil(width / 2)):
        angle = place * theta ** (-2 * i / width)
        waves += [math.sin(angle), math.cos(angle)]
    return tuple(waves[:width])


def embedded(config: Any, weights: Weights, x: Tokens, place: Sequence[int]) -> Tokens:
    """What a scheme makes of the embeddings."""
    match config.kind:
        case "sinusoidal":
            waves = [sinusoid(p, x.shape[1], config.theta) for p in place]
            return x + _numbers(waves)
        case "learned":  # Gehring et al. 2017, §3.1
            return x + torch.stack([weights["table.weight"][p] for p in place])
        case _:
            return x


def rotated(config: Any, x: Tokens, texts: Texts) -> Tokens:
    """Queries or keys of a head, each turned by the angle of its place (Su et al. 2021, §3.2.2)."""
    if config.kind != "rotary":
        return x
    width = round(config.fraction * x.shape[1])
    lengths = [1 + max(texts.place[m] for m in texts.tokens(t)) for t in texts.text]
    angles = _numbers(
        [
            [p * frequency for frequency in rotary_frequencies(config, width, length)]
            for p, length in zip(texts.place, lengths, strict=True)
        ]
    )
    cos, sin = (rotary_temperature(config.scaling) * wave for wave in (angles.cos(), angles.sin()))
    features = list(x.T)
    for i in range(width // 2):
        a, b = (2 * i, 2 * i + 1) if config.layout == "interleaved" else (i, i + width // 2)
        features[a] = x[:, a] * cos[:, i] - x[:, b] * sin[:, i]
        features[b] = x[:, a] * sin[:, i] + x[:, b] * cos[:, i]
    return torch.stack(features, dim=1)


def biases(
    config: Any, weights: Weights, h: int, n_heads: int, place: Sequence[int], *, causal: bool
) -> Pairs:
    """What is added to the scores of head `h`, whatever its queries and keys are."""
    match config.kind:
        case "alibi":
            slope = alibi_slopes(n_heads)[h]
            return _numbers([[-slope * abs(i - j) for j in place] for i in place])
        case "t5":
            sizes = (config.buckets, config.max_distance)
            bucket = [[t5_bucket(j - i, *sizes, causal=causal) for j in place] for i in place]
            return weights["table.weight"][torch.tensor(bucket), h]
        case _:
            return torch.zeros(len(place), len(place), dtype=torch.float64)


def alibi_slopes(n_heads: int) -> list[float]:
    """`2^(-8h/H)`; where H is no power of two, every other one of the next power fills up.

    Press et al. 2022, §3 and their code.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return slopes + between[: n_heads - power]


@cache
def t5_bucket(ahead: int, n_buckets: int, max_distance: int, *, causal: bool) -> int:
    """The bucket of a key `ahead` places ahead of the query (Raffel et al. 2020, §2.1)."""
    first = 0
    if not causal:  # half of the buckets for what is behind, half for what is ahead
        n_buckets //= 2
        first = n_buckets if ahead > 0 else 0
    distance = max(-ahead, 0) if causal else abs(ahead)
    exact = n_buckets // 2
    if distance < exact:
        return first + distance
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return first + min(exact + int(share * (n_buckets - exact)), n_buckets - 1)


def content_bias(config: Any, weights: Weights, h: int, q: Tokens) -> Tokens:
    """`q + u`: the queries that meet the keys (Dai et al. 2019, §3.3, terms a and c)."""
    return q + weights["u"][h] if config.kind == "transformer_xl" else q


def distance_scores(
    config: Any, weights: Weights, h: int, q: Tokens, place: Sequence[int]
) -> Pairs | float:
    """`(q_i + v)·W_R R_{i-j}`, before scaling (Dai et al. 2019, §3.3, terms b and d)."""
    if config.kind != "transformer_xl":
        return 0.0
    d_head, d_model = q.shape[1], weights["r_proj.weight"].shape[1]
    to_head = weights["r_proj.weight"][h * d_head : (h + 1) * d_head]
    r = _numbers([[sinusoid(i - j, d_model) for j in place] for i in place])
    return torch.einsum("ic,cd,ijd->ij", q + weights["v"][h], to_head, r)


def _numbers(table: Any) -> Tensor:
    """Python's own numbers, which torch would round to float32."""
    return torch.tensor(table, dtype=torch.float64)
