"""The definitions of placements, `f(config, norm, x, sublayer, depth)` for one sublayer.

`norm(name, x)` applies the placement's norm of that name. Placements with several residual streams
have definitions of their own, in `streams.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from addnorm.checking.definition.definitions import Definitions
from addnorm.checking.definition.layers import Tokens, Weights
from addnorm.checking.definition.streams import (
    HYPER_CONNECTIONS,
    MANIFOLD_CONNECTIONS,
    StreamsDefinition,
)
from addnorm.nn.hyper_connections import HyperConnectionsConfig, ManifoldConnectionsConfig
from addnorm.nn.residuals import (
    DeepNormConfig,
    LayerScaleConfig,
    ParallelConfig,
    PostNormConfig,
    PreNormConfig,
    SandwichNormConfig,
)

Norm = Callable[[str, Tokens], Tokens]
Sublayer = Callable[[Tokens], Tokens]


@dataclass(frozen=True, kw_only=True)
class Depth:
    """The position of a sublayer: its layer, from 0, and the depth of the model.

    `causal` is true in a decoder; `first` says whether the sublayer is the first of its layer, and
    `weights` are those of its placement.
    """

    encoder: int = 0
    decoder: int = 0
    causal: bool = False
    layer: int = 0
    first: bool = True
    weights: Weights = field(default_factory=dict[str, Tensor])


def post(config: Any, norm: Norm, x: Tokens, f: Sublayer, depth: Depth) -> Tokens:
    """Vaswani et al. 2017, §3.1."""
    return norm("norm", x + f(x))


def pre(config: Any, norm: Norm, x: Tokens, f: Sublayer, depth: Depth) -> Tokens:
    """Xiong et al. 2020, fig. 1b; without the very first in Warner et al. 2024, §2.1."""
    if not config.first and depth.layer == 0 and depth.first:
        return x + config.scale * f(x)
    return x + config.scale * f(norm("norm", x))


def layer_scale(config: Any, norm: Norm, x: Tokens, f: Sublayer, depth: Depth) -> Tokens:
    """Touvron et al. 2021, §2, eq. 4: `diag(λ)` before the sum."""
    return x + f(norm("norm", x)) @ depth.weights["layer_scale"].diag()


def sandwich(config: Any, norm: Norm, x: Tokens, f: Sublayer, depth: Depth) -> Tokens:
    """Ding et al. 2021, §2.4; with the second norm alone OLMo Team 2024, §3.2.

    With a factor of the layer after its last sublayer, Gemma 4 (Google 2026), code.
    """
    y = x + norm("norm_out", f(norm("norm_in", x) if config.norms == "both" else x))
    return y * depth.weights["layer_factor"] if "layer_factor" in depth.weights else y


def deepnorm(config: Any, norm: Norm, x: Tokens, f: Sublayer, depth: Depth) -> Tokens:
    """Wang et al. 2022, fig. 2."""
    return norm("norm", deepnorm_alpha(depth) * x + f(x))


def deepnorm_alpha(depth: Depth) -> float:
    """α of Wang et al. 2022, fig. 2, by the number of layers."""
    n, m = depth.encoder, depth.decoder
    if not n or not m:
        return (2 * (n + m)) ** 0.25
    return (3 * m) ** 0.25 if depth.causal else 0.81 * (n**4 * m) ** (1 / 16)


def parallel(config: Any, norm: Norm, x: Tokens, sublayers: Mapping[str, Sublayer]) -> Tokens:
    """Chowdhery et al. 2022, §2, with one norm; Black et al. 2022, §2.1, with one for each."""
    y = x
    for name, f in sublayers.items():
        y = y + f(norm("norm" if config.norms == "one" else f"{name}_residual.norm", x))
    return y


@dataclass(frozen=True, kw_only=True)
class PlacementDefinition:
    """How a placement applies each `sublayer` alone, or all sublayers of a `block`.

    `final` says whether a norm follows the last layer. `streams` is for several residual streams.
    """

    streams: StreamsDefinition | None = None
    sublayer: Callable[[Any, Norm, Tokens, Sublayer, Depth], Tokens] | None = None
    block: Callable[[Any, Norm, Tokens, Mapping[str, Sublayer]], Tokens] | None = None
    final: bool = False


PLACEMENTS = Definitions[PlacementDefinition](
    "placement",
    "placements.py",
    {
        PostNormConfig: PlacementDefinition(sublayer=post),
        PreNormConfig: PlacementDefinition(sublayer=pre, final=True),
        LayerScaleConfig: PlacementDefinition(sublayer=layer_scale, final=True),
        SandwichNormConfig: PlacementDefinition(sublayer=sandwich, final=True),
        DeepNormConfig: PlacementDefinition(sublayer=deepnorm),
        ParallelConfig: PlacementDefinition(block=parallel, final=True),
        HyperConnectionsConfig: PlacementDefinition(streams=HYPER_CONNECTIONS, final=True),
        ManifoldConnectionsConfig: PlacementDefinition(streams=MANIFOLD_CONNECTIONS, final=True),
    },
    wrap=lambda own: (
        PlacementDefinition(**own)
        if isinstance(own, Mapping)
        else PlacementDefinition(sublayer=own)
    ),
)
