"""The definition of the three models: embedding, blocks in their placement, head."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from addnorm.check.definition.attention import cross_attention, self_attention
from addnorm.check.definition.layers import (
    Observed,
    Tokens,
    Weights,
    feedforward,
    linear,
    normalised,
    under,
)
from addnorm.check.definition.mixers import convolution, recurrent
from addnorm.check.definition.positions import embedded
from addnorm.check.definition.texts import Texts

Logits = Float[Tensor, "seq vocab"]
Sublayer = Callable[[Weights, Tokens], Tokens]


def decoder_logits(
    config: Any,
    weights: Weights,
    tokens: Sequence[int],
    texts: Texts,
    observed: Observed | None = None,
) -> Logits:
    """Each token predicts the next (Radford et al. 2018, eq. 2)."""
    x = _embedding(config, under(weights, "embed"), tokens, texts, observed)
    sublayers = _sublayers(config, texts, causal=True)
    alpha = (2 * config.n_layers) ** 0.25  # Wang et al. 2022, fig. 2
    x = _stack(config, under(weights, "stack"), x, sublayers, config.n_layers, alpha, observed)
    return linear(weights, "head", x)


def encoder_logits(
    config: Any,
    weights: Weights,
    tokens: Sequence[int],
    texts: Texts,
    observed: Observed | None = None,
) -> Logits:
    """Every token sees every other (Devlin et al. 2019, §3)."""
    x = _embedding(config, under(weights, "embed"), tokens, texts, observed)
    sublayers = _sublayers(config, texts, causal=False)
    alpha = (2 * config.n_layers) ** 0.25
    x = _stack(config, under(weights, "stack"), x, sublayers, config.n_layers, alpha, observed)
    return linear(weights, "head", x)


def encoder_decoder_logits(
    config: Any,
    weights: Weights,
    source: tuple[Sequence[int], Texts],
    target: tuple[Sequence[int], Texts],
    observed: Observed | None = None,
) -> Logits:
    """The decoder looks back at the encoded source (Vaswani et al. 2017, fig. 1)."""
    n, m = config.n_layers, config.n_decoder_layers or config.n_layers
    x = _embedding(config, under(weights, "source_embed"), *source, observed)
    sublayers = _sublayers(config, source[1], causal=False)
    alpha = 0.81 * (n**4 * m) ** (1 / 16)
    memory = _stack(config, under(weights, "encoder"), x, sublayers, n, alpha, observed)

    seen = target[1].same_text(source[1])
    look_back = config.cross_attention or config.attention

    def cross(w: Weights, x: Tokens) -> Tokens:
        return cross_attention(look_back, w, x, memory, seen)

    target_sublayers = _sublayers(config, target[1], causal=True)
    sublayers = {
        "attention": target_sublayers["attention"],
        "cross_attention": cross,
        "feedforward": target_sublayers["feedforward"],
    }
    y = _embedding(config, under(weights, "target_embed"), *target, observed)
    alpha = (3 * m) ** 0.25
    y = _stack(config, under(weights, "decoder"), y, sublayers, m, alpha, observed)
    return linear(weights, "head", y)


def _embedding(
    config: Any, weights: Weights, tokens: Sequence[int], texts: Texts, observed: Observed | None
) -> Tokens:
    """`norm(position(scale · E[token]) + E_type[first])`."""
    scale = math.sqrt(config.d_model) if config.embedding.scale == "sqrt" else 1.0
    x = weights["tokens.weight"][list(tokens)] * scale
    x = embedded(config.position, under(weights, "position"), x, texts.place)
    if config.embedding.n_types:
        x = x + weights["types.weight"][0]
    return normalised(config.embedding.norm, under(weights, "norm"), x, observed)


def _sublayers(config: Any, texts: Texts, *, causal: bool) -> dict[str, Sublayer]:
    """What stands in a block, by name and in order."""

    def mix(w: Weights, x: Tokens) -> Tokens:
        match config.attention.kind:
            case "attention":
                return self_attention(
                    config.attention, w, x, texts, causal=causal, position=config.position
                )
            case "recurrent":
                return recurrent(config.attention, w, x, texts, causal=causal)
            case "convolution":
                return convolution(config.attention, w, x, texts, causal=causal)
            case _:
                raise NotImplementedError(config.attention.kind)

    return {"attention": mix, "feedforward": lambda w, x: feedforward(config.feedforward, w, x)}


def _stack(
    config: Any,
    weights: Weights,
    x: Tokens,
    sublayers: dict[str, Sublayer],
    n_layers: int,
    alpha: float,
    observed: Observed | None,
) -> Tokens:
    """The blocks, and a norm after the last where the residual stream itself has none."""
    for i in range(n_layers):
        x = _block(config, under(weights, f"blocks.{i}"), x, sublayers, alpha, observed)
    if config.residual.kind in ("pre", "sandwich", "parallel"):
        x = normalised(config.norm, under(weights, "norm"), x, observed)
    return x


def _block(
    config: Any,
    weights: Weights,
    x: Tokens,
    sublayers: dict[str, Sublayer],
    alpha: float,
    observed: Observed | None,
) -> Tokens:
    """Every sublayer in its placement."""

    def norm(sublayer: str | None, name: str, x: Tokens) -> Tokens:
        owner = "norm" if sublayer is None else f"{sublayer}_residual.{name}"
        return normalised(config.norm, under(weights, owner), x, observed)

    def branch(name: str, x: Tokens) -> Tokens:
        return sublayers[name](under(weights, name), x)

    branches: list[Tokens] = []
    for name in sublayers:
        match config.residual.kind:
            case "post":  # Vaswani et al. 2017, §3.1
                x = norm(name, "norm", x + branch(name, x))
            case "pre":  # Xiong et al. 2020, fig. 1b
                x = x + branch(name, norm(name, "norm", x))
            case "sandwich":  # Ding et al. 2021, §2.4
                x = x + norm(name, "norm_out", branch(name, norm(name, "norm_in", x)))
            case "deepnorm":  # Wang et al. 2022, fig. 2
                x = norm(name, "norm", alpha * x + branch(name, x))
            case _:  # parallel: Chowdhery et al. 2022, §2, and Black et al. 2022, §2.1
                norm_name = name if config.residual.norms == "each" else None
                branches.append(branch(name, norm(norm_name, "norm", x)))
    return x + sum(branches)
