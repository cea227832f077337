"""The definitions of heads, `f(config, weights, x, texts)`: one output row per token or text."""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.feedforward import feedforward
from addnorm.checking.definition.layers import Tokens, Weights, activated, linear, under
from addnorm.checking.definition.norms import normalised
from addnorm.checking.definition.texts import Texts
from addnorm.nn.crf import CRFHeadConfig
from addnorm.nn.forecast import ForecastHeadConfig
from addnorm.nn.heads import (
    ClassificationHeadConfig,
    CTCHeadConfig,
    HiddenHeadConfig,
    PoolerHeadConfig,
    SpanHeadConfig,
    TaggingHeadConfig,
    TokenHeadConfig,
)
from addnorm.nn.pooling import (
    AttentionPoolingConfig,
    ConvolutionPoolingConfig,
    JoinedPoolingConfig,
)
from addnorm.nn.similarity import SimilarityHeadConfig
from addnorm.nn.vectors import VectorHeadConfig

Outputs = Float[Tensor, "rows outputs"]


def transformed(config: Any, weights: Weights, x: Tokens) -> Tokens:
    """`norm(act(W x + b))` (Devlin et al. 2019, code); `x` without a transform."""
    if config is None:
        return x
    y = activated(config.activation, linear(weights, "proj", x))
    return normalised(config.norm, under(weights, "norm"), y)


def token(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """Press & Wolf 2017; scaled as in Raffel et al. 2020, capped as in Gemma Team 2024, §2."""
    factors: dict[Any, float] = {"one": 1.0, "sqrt": 1 / math.sqrt(x.shape[1])}
    x = transformed(config.transform, under(weights, "transform"), x)
    factor: Any = factors.get(config.scale, config.scale)
    x = x * factor
    logits = x @ weights["weight"].T + weights.get("bias", 0.0)
    cap = config.softcap
    return logits if cap is None else cap * torch.tanh(logits / cap)


def tagging(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """Devlin et al. 2019, §5.3."""
    return linear(weights, "proj", transformed(config.transform, under(weights, "transform"), x))


def span(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """Devlin et al. 2019, §4.2: `S · T_i` and `E · T_i`, each with a bias."""
    return linear(weights, "proj", transformed(config.transform, under(weights, "transform"), x))


def ctc(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """The scores of every symbol and of the blank, for each frame (Graves et al. 2006, §3)."""
    return linear(weights, "proj", x)


def crf(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """The scores `P` of single words (Lample et al. 2016, §2.2)."""
    return linear(weights, "proj", x)


def classification(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """Devlin et al. 2019, §4.1; `seqpool` is Hassani et al. 2021, §3.3."""
    if config.pooled == "transformed":  # Boizard et al. 2025, code
        x = transformed(config.transform, under(weights, "transform"), x)
        return linear(weights, "proj", _pooled(config.pooling, weights, x, texts))
    pooled = _pooled(config.pooling, weights, x, texts)
    return linear(
        weights, "proj", transformed(config.transform, under(weights, "transform"), pooled)
    )


def convolved(config: Any, weights: Weights, text: Tokens) -> Tensor:
    """For each filter, its largest output over all windows, one at a time (Kim 2014, §2)."""
    largest: list[Tensor] = []
    for i, k in enumerate(config.kernel_sizes):
        filters, bias = weights[f"conv.{i}.weight"], weights[f"conv.{i}.bias"]
        nothing = text.new_zeros(k - 1, text.shape[1])
        line = torch.cat([nothing, text, nothing])
        windows = [line[t : t + k] for t in range(len(text) + k - 1)]
        answers = torch.stack([(filters * window.T).sum((1, 2)) + bias for window in windows])
        largest.append(activated(config.activation, answers).amax(0))
    return torch.cat(largest)


def joined(config: Any, text: Tokens) -> Tensor:
    """`[CLS]` and the mean of the patches; zeros if there are none (Oquab et al. 2024, §7.1)."""
    nothing = torch.zeros(text.shape[1], dtype=text.dtype)
    parts = [text[i] if i < len(text) else nothing for i in range(config.first)]
    rest = text[config.first + config.skipped :]
    if config.rest == "mean":
        parts.append(rest.mean(0) if len(rest) else nothing)
    return torch.cat(parts)


def attended(config: Any, weights: Weights, text: Tokens) -> Tensor:
    """A learned query attends head by head, then `u + FFN(norm(u))` (Zhai et al. 2023, code)."""
    q, heads = linear(weights, "q_proj", weights["probe"][None])[0], list[Tensor]()
    k, v = linear(weights, "k_proj", text), linear(weights, "v_proj", text)
    size = text.shape[1] // config.n_heads
    for h in range(config.n_heads):
        columns = slice(h * size, (h + 1) * size)
        a = torch.softmax(k[:, columns] @ q[columns] / math.sqrt(size), 0)
        heads.append(a @ v[:, columns])
    u = linear(weights, "out_proj", torch.cat(heads)[None])
    inner = normalised(config.norm, under(weights, "norm"), u)
    return (u + feedforward(config.feedforward, under(weights, "feedforward"), inner))[0]


def _pooled(pooling: Any, weights: Weights, x: Tokens, texts: Texts) -> Tensor:
    if isinstance(pooling, ConvolutionPoolingConfig):
        return torch.stack([convolved(pooling, under(weights, "pool"), x[t]) for t in _each(texts)])
    if isinstance(pooling, JoinedPoolingConfig):
        return torch.stack([joined(pooling, x[t]) for t in _each(texts)])
    if isinstance(pooling, AttentionPoolingConfig):
        return torch.stack([attended(pooling, under(weights, "pool"), x[t]) for t in _each(texts)])
    pool = {
        "mean": lambda t: t.mean(0),
        "max": lambda t: t.amax(0),
        "first": lambda t: t[0],
        "last": lambda t: t[-1],
        "seqpool": lambda t: torch.softmax(linear(weights, "pool.score", t)[:, 0], 0) @ t,
    }
    return torch.stack([pool[pooling](x[tokens]) for tokens in _each(texts)])


def similarity(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """Compare the vectors of consecutive pairs of texts (Reimers & Gurevych 2019, §3)."""
    vectors = _pooled(config.pooling, under(weights, "vectors"), x, texts)
    rows: list[Tensor] = []
    for u, v in zip(vectors[0::2], vectors[1::2], strict=True):
        if config.problem == "single_label":
            joined = torch.cat([u, v, (u - v).abs()])
            rows.append(linear(under(weights, "compare"), "proj", joined))
        else:
            low, high = config.range
            rows.append(low + (high - low) * (u @ v)[None] / (u.norm() * v.norm()))
    return torch.stack(rows)


def vector(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """The pooled vector, projected if a width is given (Radford et al. 2021, §2.3)."""
    pooled = _pooled(config.pooling, weights, x, texts)
    return pooled if config.width is None else linear(weights, "proj", pooled)


def forecast(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """Pool the patches of each series: joined, mean, or last (Nie et al. 2023, §3.1)."""
    pool = {"flatten": lambda t: t.flatten(), "mean": lambda t: t.mean(0), "last": lambda t: t[-1]}
    return linear(
        weights, "proj", torch.stack([pool[config.pooling](x[tokens]) for tokens in _each(texts)])
    )


def pooler(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """Devlin et al. 2019, §3."""
    return torch.tanh(linear(weights, "proj", torch.stack([x[t[0]] for t in _each(texts)])))


def hidden(config: Any, weights: Weights, x: Tokens, texts: Texts) -> Outputs:
    """The hidden states themselves."""
    return x


def _each(texts: Texts) -> list[list[int]]:
    return [texts.tokens(t) for t in sorted(set(texts.text))]


HEADS = Definitions[Callable[[Any, Weights, Tokens, Texts], Outputs]](
    "head",
    "heads.py",
    {
        TokenHeadConfig: token,
        TaggingHeadConfig: tagging,
        CRFHeadConfig: crf,
        SpanHeadConfig: span,
        CTCHeadConfig: ctc,
        ForecastHeadConfig: forecast,
        ClassificationHeadConfig: classification,
        SimilarityHeadConfig: similarity,
        PoolerHeadConfig: pooler,
        VectorHeadConfig: vector,
        HiddenHeadConfig: hidden,
    },
)
