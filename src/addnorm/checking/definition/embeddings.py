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


EMBEDDINGS = Definitions[Callable[[Any, Weights, Sequence[int], Position, Norm], Tokens]](
    "embedding", "embeddings.py", {EmbeddingConfig: tokens_embedding}
)
