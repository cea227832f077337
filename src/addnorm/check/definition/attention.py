"""The definition of attention: a head at a time, every pair of tokens in one matrix."""

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from addnorm.check.definition.layers import Tokens, Weights, linear, normalised, under
from addnorm.check.definition.positions import biases, content_bias, distance_scores, rotated
from addnorm.check.definition.texts import Texts

Queries = Float[Tensor, "q_seq _width"]
Keys = Float[Tensor, "kv_seq _width"]
Pairs = Float[Tensor, "q_seq kv_seq"]
Seen = Bool[Tensor, "q_seq kv_seq"]


def self_attention(
    config: Any, weights: Weights, x: Tokens, texts: Texts, *, causal: bool, position: Any
) -> Tokens:
    """`concat(heads) W_o` where texts look at themselves (Vaswani et al. 2017, §3.2.2)."""
    # What segment memory holds takes part in keys and values, and gets no gradient.
    source = torch.where(texts.is_latest()[:, None], x, x.detach())
    seen = texts.seen(causal=causal, pattern=config.pattern)
    position_weights = under(weights, "position")
    heads: list[Tensor] = []
    for h in range(config.n_heads):
        q, k, v = _head(config, weights, h, x, source)
        q, k = rotated(position, q, texts), rotated(position, k, texts)
        content = content_bias(position, position_weights, h, q)
        scores = scored(config.score, under(weights, "core.score"), h, content, k)
        scores = scores + scale(config.score, q) * distance_scores(
            position, position_weights, h, q, texts.place
        )
        scores = scores + biases(
            position, position_weights, h, config.n_heads, texts.place, causal=causal
        )
        heads.append(softmax(scores, seen) @ v)
    return linear(weights, "out_proj", torch.cat(heads, dim=1))


def cross_attention(config: Any, weights: Weights, x: Queries, memory: Keys, seen: Seen) -> Queries:
    """The same where texts look at a memory, which knows of no positions."""
    heads: list[Tensor] = []
    for h in range(config.n_heads):
        q, k, v = _head(config, weights, h, x, memory)
        scores = scored(config.score, under(weights, "core.score"), h, q, k)
        heads.append(softmax(scores, seen) @ v)
    return linear(weights, "out_proj", torch.cat(heads, dim=1))


def _head(
    config: Any, weights: Weights, h: int, x: Queries, source: Keys
) -> tuple[Queries, Keys, Keys]:
    """Query, key and value of head `h`: query heads 0 … r-1 share the first key/value head.

    Ainslie et al. 2023, fig. 2.
    """
    d_head = config.d_head or x.shape[1] // config.n_heads
    sharing = config.n_heads // (config.n_kv_heads or config.n_heads)
    mine, shared = (slice(i * d_head, (i + 1) * d_head) for i in (h, h // sharing))
    q = linear(weights, "q_proj", x)[:, mine]
    k = linear(weights, "k_proj", source)[:, shared]
    v = linear(weights, "v_proj", source)[:, shared]
    q = normalised(config.qk_norm, under(weights, "q_norm"), q)  # Henry et al. 2020
    k = normalised(config.qk_norm, under(weights, "k_norm"), k)
    return q, k, v


def scale(config: Any, q: Queries) -> float:
    """What products of queries and keys are multiplied by."""
    return 1 / math.sqrt(q.shape[1]) if config.kind == "scaled_dot" else 1.0


def scored(config: Any, weights: Weights, h: int, q: Queries, k: Keys) -> Pairs:
    """How well each query and each key agree."""
    match config.kind:
        case "scaled_dot":  # Vaswani et al. 2017, eq. 1
            return q @ k.T / math.sqrt(q.shape[1])
        case "dot":
            return q @ k.T
        case "bilinear":  # kᵀ W q: Luong et al. 2015, §3.1
            return (k @ weights["weight"][h] @ q.T).T
        case "additive":  # vᵀ tanh(W k + U q): Bahdanau et al. 2015, appendix A.1.2
            keys, queries = k @ weights["key"][h], q @ weights["query"][h]
            pairs = torch.tanh(queries[:, None] + keys[None, :])
            return (pairs @ weights["vector"][h]).squeeze(-1)
        case _:
            raise NotImplementedError(config.kind)


def softmax(scores: Pairs, seen: Seen) -> Pairs:
    """`exp(s) / Σ exp(s)` over the keys that a query sees; there is one at least."""
    scores = scores.masked_fill(~seen, -math.inf)
    shares = torch.exp(scores - scores.max(1, keepdim=True).values)
    return shares / shares.sum(1, keepdim=True)
