"""Hyper-connections: several residual streams, with learned maps to, between and from them.

The streams of a token lie side by side: `[batch, seq, streams · d_model]`. The first sublayer finds
one stream, and copies it; after the last layer, and before an early exit, they become one again.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Annotated, Any, Literal, NamedTuple

import torch
from jaxtyping import Float
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.depth import Depth
from addnorm.nn.dropout import Dropout
from addnorm.nn.functional import at_least_float32
from addnorm.nn.norms import LayerNorm, NormConfig, build_norm
from addnorm.nn.types import Hidden, Stream, Valid

Streams = Float[Tensor, "batch seq streams d_model"]
ReadWeights = Float[Tensor, "*#tokens streams"]
MixWeights = Float[Tensor, "*#tokens streams streams"]

SMALL = 0.01
"""The first factor of what depends on the token (Zhu et al. 2024, §3.1)."""

SURE = 2.0
"""The first logit of a connection that is open in mHC; of a closed one it is the negative."""

MOST_STREAMS = 64


def side_by_side(x: Stream, n: int, d_model: int) -> Streams:
    """The streams of every token; n copies of a single one."""
    return x.unflatten(-1, (-1, d_model)).expand(*x.shape[:-1], n, d_model)


def read_from(weights: ReadWeights, streams: Streams) -> Hidden:
    """`Σ_i w_i h_i`: the weighted sum of the streams, in their type."""
    return (weights.unsqueeze(-1) * streams).sum(-2).to(streams.dtype)


def product(
    x: Float[Tensor, "*tokens width"], weight: Float[Tensor, "out width"]
) -> Float[Tensor, "*tokens out"]:
    """`x Wᵀ` in at least float32, also in mixed precision."""
    wide = at_least_float32(x)
    unchanged = nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False)
    with unchanged:
        return wide @ weight.to(wide.dtype).T


def flattened(streams: Streams, eps: float) -> Float[Tensor, "batch seq width"]:
    """`RMSNorm(vec(H))` without a gain, in at least float32."""
    flat = at_least_float32(streams).flatten(-2)
    return nn.functional.rms_norm(flat, flat.shape[-1:], eps=eps)


class Connections(NamedTuple):
    """The weights of one sublayer, shared or per token: how it reads, mixes and writes streams.

    `H' = mixᵀ H + write · f(readᵀ H)`, of streams `H` of shape `[streams, d_model]`. The rows of
    `mix` are the streams before the sublayer, its columns those after it.
    """

    read: ReadWeights
    mix: MixWeights
    write: ReadWeights


class HyperConnection(nn.Module):
    """`H' = mixᵀ H + write · drop(f(norm(readᵀ H)))` (Zhu et al. 2024, eq. 5).

    `connections` gives the weights by the streams `H`, `[batch, seq, streams, d_model]`.
    """

    def __init__(
        self, norm: nn.Module, connections: nn.Module, dropout: float, *, n: int, d_model: int
    ) -> None:
        super().__init__()
        self.norm = norm
        self.connections = connections
        self.dropout = Dropout(dropout)
        self.n = n
        self.d_model = d_model

    def forward(
        self, x: Stream, f: Callable[[Hidden], Hidden], valid: Valid | None = None
    ) -> Stream:
        streams = side_by_side(x, self.n, self.d_model)
        read, mix, write = self.connections(streams)
        y = self.dropout(f(self.norm(read_from(read, streams), valid)))
        # Not a matrix product, which mixed precision would compute in the narrower type.
        mixed = sum(mix[..., i, :, None] * streams[..., i, None, :] for i in range(self.n))
        return (mixed + write.unsqueeze(-1) * y.unsqueeze(-2)).to(x.dtype).flatten(-2)


def first_weights(n: int, sublayer: int) -> tuple[Tensor, Tensor]:
    """`e_{k mod n}` and the identity: sublayer k reads a single stream, and streams do not mix."""
    return torch.eye(n)[sublayer % n], torch.eye(n)


class StaticConnections(nn.Module):
    """Learned weights, the same for every token (Zhu et al. 2024, §2.1).

    They start as `e_{k mod n}` (read), the identity (mix) and ones (write) for sublayer k, which is
    pre-norm (eq. 14). They are vectors, on which no weight decay acts.
    """

    def __init__(self, n: int, sublayer: int) -> None:
        super().__init__()
        self.n = n
        self.sublayer = sublayer
        self.read = nn.Parameter(torch.empty(n))
        self.mix = nn.Parameter(torch.empty(n * n))
        self.write = nn.Parameter(torch.empty(n))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start as pre-norm."""
        read, mix = first_weights(self.n, self.sublayer)
        self.read.data.copy_(read)
        self.mix.data.copy_(mix.flatten())
        self.write.data.fill_(1.0)

    def forward(self, streams: Streams) -> Connections:
        return Connections(self.read, self.mix.view(self.n, self.n), self.write)


class DynamicConnections(nn.Module):
    """`w + s ⊙ tanh(norm(H) W)`: static weights, and what each token adds to them.

    Zhu et al. 2024, §2.2, eq. 10–13, with LayerNorm over each stream as in its algorithm 2. One
    `s` serves the weights of reading and mixing, another those of writing. `W` starts at zero.
    """

    def __init__(self, d_model: int, n: int, sublayer: int) -> None:
        super().__init__()
        self.static = StaticConnections(n, sublayer)
        self.norm = LayerNorm(d_model)
        self.weight = nn.Parameter(torch.empty(n + 2, d_model))
        self.scale = nn.Parameter(torch.empty(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start without a part that depends on the token."""
        self.weight.data.zero_()
        self.scale.data.fill_(SMALL)

    def forward(self, streams: Streams) -> Connections:
        static = self.static(streams)
        added = torch.tanh(product(self.norm(streams), self.weight))
        read, mix, write = added.split([1, len(self.weight) - 2, 1], dim=-1)
        of_width, of_depth = self.scale
        return Connections(
            static.read + of_width * read.squeeze(-1),
            static.mix + of_width * mix,
            static.write + of_depth * write.squeeze(-1),
        )


def sinkhorn(weights: MixWeights, iterations: int, eps: float) -> MixWeights:
    """Divide rows, then columns by their sums, many times: almost doubly stochastic.

    Sinkhorn & Knopp 1967; as in DeepSeek-V4, the columns come last, and ε is in each sum. `weights`
    are positive and have rows of sum one already.
    """
    weights = weights / (weights.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        weights = weights / (weights.sum(-1, keepdim=True) + eps)
        weights = weights / (weights.sum(-2, keepdim=True) + eps)
    return weights


class ManifoldConnections(nn.Module):
    """Weights that keep the size of the streams: mHC (Xie et al. 2025, eq. 7–9).

    Of `z = a ⊙ (W · RMSNorm(vec(H))) + b`, in three parts each with its number `a`:

    - `read = σ(z_read) + ε`;
    - `write = 2 σ(z_write)`;
    - `mix = sinkhorn(softmax(z_mix) + ε)`, almost doubly stochastic.

    Where the paper is silent, as in DeepSeek-V4. We start with logits of ±2 for the first weights
    of hyper-connections.
    """

    def __init__(self, d_model: int, n: int, sublayer: int, *, iterations: int, eps: float) -> None:
        super().__init__()
        self.n = n
        self.sublayer = sublayer
        self.iterations = iterations
        self.eps = eps
        self.weight = nn.Parameter(torch.empty((2 + n) * n, n * d_model))
        self.bias = nn.Parameter(torch.empty((2 + n) * n))
        self.scale = nn.Parameter(torch.empty(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start almost as pre-norm, with a small part that depends on the token."""
        nn.init.normal_(self.weight.data, std=self.weight.shape[1] ** -0.5)
        read, mix = first_weights(self.n, self.sublayer)
        open_ = torch.cat([read, torch.full((self.n,), 0.5), mix.flatten()])
        self.bias.data.copy_(SURE * (2 * open_ - 1))
        self.scale.data.fill_(SMALL)

    def forward(self, streams: Streams) -> Connections:
        n = self.n
        z = product(flattened(streams, self.eps), self.weight)
        read, write, mix = (
            a * part + b
            for a, part, b in zip(
                self.scale,
                z.split([n, n, n * n], dim=-1),
                self.bias.split([n, n, n * n]),
                strict=True,
            )
        )
        shares = mix.unflatten(-1, (n, n)).softmax(-1) + self.eps
        return Connections(
            read.sigmoid() + self.eps,
            sinkhorn(shares, self.iterations, self.eps),
            2 * write.sigmoid(),
        )


class StreamSum(nn.Module):
    """`Σ_i h_i`: the streams as one (Zhu et al. 2024, §2)."""

    def __init__(self, d_model: int, n: int) -> None:
        super().__init__()
        self.d_model = d_model
        self.n = n

    def forward(self, x: Stream) -> Hidden:
        return side_by_side(x, self.n, self.d_model).sum(-2)


class StreamHead(nn.Module):
    """`Σ_i w_i h_i` with `w = σ(a W · RMSNorm(vec(H)) + b) + ε`: the streams as one (DeepSeek-V4).

    It starts as their mean.
    """

    def __init__(self, d_model: int, n: int, *, eps: float) -> None:
        super().__init__()
        self.d_model = d_model
        self.n = n
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(n, n * d_model))
        self.bias = nn.Parameter(torch.empty(n))
        self.scale = nn.Parameter(torch.empty(1))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start with almost the same weight for every stream."""
        nn.init.normal_(self.weight.data, std=self.weight.shape[1] ** -0.5)
        self.bias.data.zero_()
        self.scale.data.fill_(SMALL)

    def forward(self, x: Stream) -> Hidden:
        streams = side_by_side(x, self.n, self.d_model)
        z = product(flattened(streams, self.eps), self.weight)
        weights = (self.scale * z + self.bias).sigmoid()
        return read_from(weights + self.eps, streams)


class CollapsedNorm(nn.Module):
    """`norm(collapse(H))`: the final norm, on the streams as one."""

    def __init__(self, collapse: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.collapse = collapse
        self.norm = norm

    def forward(self, x: Stream, valid: Valid | None = None) -> Hidden:
        return self.norm(self.collapse(x), valid)


def _conflict(around: Any) -> str | None:
    """The first layer turns one stream into several, so LayerDrop cannot skip it."""
    if around.layer_drop:
        return (
            f"layer_drop = {around.layer_drop:g} would skip layer 0, which makes several residual "
            "streams of one: leave layer_drop out, or give another residual"
        )
    return None


StreamCount = Annotated[PositiveInt, Field(le=MOST_STREAMS)]


@config
class HyperConnectionsConfig:
    """`H' = mixᵀ H + write · f(norm(readᵀ H))`: several residual streams, with learned weights.

    Zhu et al. 2024, eq. 5. It is pre-norm at the start.
    """

    kind: Literal["hyper_connections"] = "hyper_connections"
    streams: StreamCount = 4
    """The number of residual streams, each of width d_model."""
    dynamic: bool = True
    """Whether the weights also depend on the token."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """With weights that depend on the token, or do not."""
        return {
            "hyper_connections": cls(),
            "hyper_connections_static": cls(dynamic=False, streams=3),
        }

    def conflict(self, around: Any) -> str | None:
        """No layer may be dropped."""
        return _conflict(around)

    def build(
        self, d_model: int, norm: NormConfig, dropout: float, depth: Depth
    ) -> HyperConnection:
        n, k = self.streams, depth.sublayer
        connections = DynamicConnections(d_model, n, k) if self.dynamic else StaticConnections(n, k)
        return HyperConnection(
            build_norm(norm, d_model), connections, dropout, n=n, d_model=d_model
        )

    def build_final(self, d_model: int, norm: NormConfig) -> CollapsedNorm:
        """The sum of the streams, and the final norm."""
        return CollapsedNorm(StreamSum(d_model, self.streams), build_norm(norm, d_model))


@config
class ManifoldConnectionsConfig:
    """`H' = mixᵀ H + write · f(norm(readᵀ H))`, with a `mix` that keeps the size of the streams.

    mHC (Xie et al. 2025, eq. 7–9), as in DeepSeek-V4.
    """

    kind: Literal["mhc"] = "mhc"
    streams: StreamCount = 4
    """The number of residual streams, each of width d_model."""
    iterations: PositiveInt = 20
    """How often rows and columns of the mixing matrix are divided by their sums."""
    eps: PositiveFloat = 1e-6
    """ε, added to weights and to sums against division by zero."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """With the usual number of iterations, and with a few."""
        return {"mhc": cls(), "mhc_three_iterations": cls(streams=3, iterations=3, eps=1e-3)}

    def conflict(self, around: Any) -> str | None:
        """No layer may be dropped."""
        return _conflict(around)

    def build(
        self, d_model: int, norm: NormConfig, dropout: float, depth: Depth
    ) -> HyperConnection:
        connections = ManifoldConnections(
            d_model, self.streams, depth.sublayer, iterations=self.iterations, eps=self.eps
        )
        return HyperConnection(
            build_norm(norm, d_model), connections, dropout, n=self.streams, d_model=d_model
        )

    def build_final(self, d_model: int, norm: NormConfig) -> CollapsedNorm:
        """The weighted sum of the streams, and the final norm."""
        head = StreamHead(d_model, self.streams, eps=self.eps)
        return CollapsedNorm(head, build_norm(norm, d_model))


WITH_STREAMS = (HyperConnectionsConfig, ManifoldConnectionsConfig)
"""The placements with several residual streams."""
