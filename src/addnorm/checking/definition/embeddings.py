"""The definitions of embeddings, `f(config, weights, tokens, position, norm)`.

`position(x)` applies the position encoding to embeddings, `norm(config, name, x)` a norm with the
weights of that name.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.layers import Tokens, Weights, linear
from addnorm.nn.embed import EmbeddingConfig

Norm = Callable[[Any, str, Tokens], Tokens]
Position = Callable[[Tokens], Tokens]


def tokens_embedding(
    config: Any, weights: Weights, tokens: Sequence[int], position: Position, norm: Norm
) -> Tokens:
    """`norm(position(scale · E[token]) + E_type[first])` (Vaswani et al. 2017, §3.4)."""
    x = weights["tokens.weight"][list(tokens)]
    order = None if config.d_embed is None else config.map
    if order == "first":  # Lan et al. 2020, §3.1
        x = linear(weights, "proj", x)
    factors: dict[Any, float] = {"one": 1.0, "sqrt": math.sqrt(x.shape[1])}
    factor: Any = factors.get(config.scale, config.scale)
    x = position(x * factor)
    if config.n_types:  # Devlin et al. 2019, §3
        x = x + weights["types.weight"][0]
    x = norm(config.norm, "norm", x)
    return linear(weights, "proj_last", x) if order == "last" else x


def per_layer_vectors(
    config: Any,
    weights: Weights,
    tokens: Sequence[int],
    x: Tokens,
    norm: Callable[[Tokens], Tokens],
) -> list[Tokens]:
    """The vectors of the tokens for each layer in turn, `(norm(x W_l / √d) + √e E_l[t]) / √2`.

    Gemma 3n and 4 (Google 2025, 2026), code.
    """
    of_states = linear(weights, "proj", x).split(config.width, dim=1)
    of_tokens = weights["tokens.weight"][list(tokens)].split(config.width, dim=1)
    return [
        (norm(state / math.sqrt(x.shape[1])) + math.sqrt(config.width) * token) / math.sqrt(2)
        for state, token in zip(of_states, of_tokens, strict=True)
    ]


EMBEDDINGS = Definitions[Callable[[Any, Weights, Sequence[int], Position, Norm], Tokens]](
    "embedding", "embeddings.py", {EmbeddingConfig: tokens_embedding}
)
