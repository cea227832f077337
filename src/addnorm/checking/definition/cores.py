"""The definitions of attention cores, `f(config, weights, heads)`: the output of each head."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.layers import Weights
from addnorm.checking.definition.scores import Keys, Pairs, Queries
from addnorm.nn.attention import (
    DifferentialCoreConfig,
    EagerCoreConfig,
    FlexCoreConfig,
    SDPACoreConfig,
    SinkCoreConfig,
)

AttentionMask = Bool[Tensor, "q_seq kv_seq"]


@dataclass(frozen=True, kw_only=True)
class Heads:
    """The inputs of a core: queries of each head, keys and values of each key/value head.

    `score(h, s)` gives the scores of query head `h` against key head `s`, including position
    biases; `seen` is the attention mask. `layer` counts from 0.
    """

    q: Sequence[Queries]
    k: Sequence[Keys]
    v: Sequence[Keys]
    score: Callable[[int, int], Pairs]
    seen: AttentionMask
    layer: int

    def shared(self, h: int) -> int:
        """The key/value head for query head `h`: heads 0 … r-1 share the first one.

        Ainslie et al. 2023, fig. 2.
        """
        return h * len(self.k) // len(self.q)


def softmax(scores: Pairs, seen: AttentionMask) -> Pairs:
    """`exp(s) / Σ exp(s)` over the unmasked keys, at least one."""
    scores = scores.masked_fill(~seen, -math.inf)
    shares = torch.exp(scores - scores.max(1, keepdim=True).values)
    return shares / shares.sum(1, keepdim=True)


def attention(config: Any, weights: Weights, heads: Heads) -> list[Tensor]:
    """`softmax(scores) v` (Vaswani et al. 2017, eq. 1)."""
    return [
        softmax(heads.score(h, heads.shared(h)), heads.seen) @ heads.v[heads.shared(h)]
        for h in range(len(heads.q))
    ]


def differential(config: Any, weights: Weights, heads: Heads) -> list[Tensor]:
    """The difference of heads 2p and 2p+1, the maps of pair p (Ye et al. 2024, §2.1, eq. 1–3)."""
    start = 0.8 - 0.6 * math.exp(-0.3 * heads.layer)
    first, second = (
        torch.exp((weights[f"lambda_q{i}"] * weights[f"lambda_k{i}"]).sum()) for i in (1, 2)
    )
    strength = first - second + start
    n_pairs, n_shared = len(heads.q) // 2, len(heads.k) // 2
    outputs: list[Tensor] = []
    for p in range(n_pairs):
        s = p * n_shared // n_pairs  # the pair of key/value heads of this pair
        maps = [softmax(heads.score(2 * p + i, 2 * s + i), heads.seen) for i in (0, 1)]
        values = torch.cat([heads.v[2 * s], heads.v[2 * s + 1]], dim=1)
        mixed = (maps[0] - strength * maps[1]) @ values
        size = ((mixed**2).mean(1, keepdim=True) + 1e-5).sqrt()
        outputs += (weights["norm.weight"] * mixed / size * (1 - start)).chunk(2, dim=1)
    return outputs


def with_sinks(config: Any, weights: Weights, heads: Heads) -> list[Tensor]:
    """Softmax with one more term `exp(s)` per head in the denominator (OpenAI 2025, §2.2)."""
    outputs: list[Tensor] = []
    for h, sink in enumerate(weights["sinks"]):
        scores = heads.score(h, heads.shared(h)).masked_fill(~heads.seen, -math.inf)
        largest = torch.maximum(scores.max(1, keepdim=True).values, sink)
        shares = torch.exp(scores - largest)
        total = shares.sum(1, keepdim=True) + torch.exp(sink - largest)
        outputs.append(shares / total @ heads.v[heads.shared(h)])
    return outputs


CORES = Definitions[Callable[[Any, Weights, Heads], list[Tensor]]](
    "core",
    "cores.py",
    {
        SDPACoreConfig: attention,
        FlexCoreConfig: attention,
        EagerCoreConfig: attention,
        DifferentialCoreConfig: differential,
        SinkCoreConfig: with_sinks,
    },
)


def mixed(config: Any, weights: Weights, heads: Heads) -> list[Tensor]:
    """The output of every head; standard attention if the configuration is None."""
    core = attention if config is None else CORES.of(config)
    return core(config, weights, heads)
