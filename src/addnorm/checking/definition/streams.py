"""The definitions of placements with several residual streams, one token at a time.

The streams of a token are the rows of a matrix `H`, which lie side by side between sublayers.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.checking.definition.layers import Tokens, Weights, sigmoid

Matrix = Float[Tensor, "streams _width"]
Normed = Callable[[str, Tokens], Tokens]
Sublayer = Callable[[Tokens], Tokens]


@dataclass(frozen=True)
class StreamsDefinition:
    """How a sublayer reads, mixes and writes the streams of a token, and how they end as one."""

    connections: Callable[[Any, Weights, Matrix], tuple[Tensor, Tensor, Tensor]]
    """The weights of reading `[n]`, of mixing `[n, n]`, and of writing `[n]`."""
    end: Callable[[Any, Weights, Matrix], Tensor]

    def start(self, config: Any, x: Tokens) -> Tokens:
        """Copy the embeddings into every stream (Zhu et al. 2024, §2)."""
        return torch.cat([x] * config.streams, dim=1)

    def sublayer(
        self, config: Any, weights: Weights, norm: Normed, x: Tokens, f: Sublayer
    ) -> Tokens:
        """`H' = A_rᵀ H + Bᵀ f(norm(A_mᵀ H))` (Zhu et al. 2024, eq. 5)."""
        by_token = [row.reshape(config.streams, -1) for row in x]
        parts = [self.connections(config, weights, streams) for streams in by_token]
        inputs = [read @ h for (read, _, _), h in zip(parts, by_token, strict=True)]
        y = f(norm("norm", torch.stack(inputs)))
        rows: list[Tensor] = []
        for (_, mix, write), h, of_token in zip(parts, by_token, y, strict=True):
            rows.append((mix.T @ h + torch.outer(write, of_token)).flatten())
        return torch.stack(rows)

    def collapsed(self, config: Any, weights: Weights, x: Tokens) -> Tokens:
        """Merge the streams of every token into one."""
        return torch.stack([self.end(config, weights, r.reshape(config.streams, -1)) for r in x])


def hyper_connections(config: Any, weights: Weights, h: Matrix) -> tuple[Tensor, Tensor, Tensor]:
    """Zhu et al. 2024, eq. 3 (static) and eq. 10–13 (dynamic), by algorithm 2."""
    n = config.streams
    path = "connections.static" if config.dynamic else "connections"
    read, write = weights[f"{path}.read"], weights[f"{path}.write"]
    mix = weights[f"{path}.mix"].reshape(n, n)
    if not config.dynamic:
        return read, mix, write
    centred = h - h.mean(1, keepdim=True)
    normed = centred / ((centred**2).mean(1, keepdim=True) + 1e-5).sqrt()
    normed = normed * weights["connections.norm.weight"] + weights["connections.norm.bias"]
    w = weights["connections.weight"]
    of_width, of_depth = weights["connections.scale"]
    return (
        read + of_width * torch.tanh(normed @ w[0]),
        mix + of_width * torch.tanh(normed @ w[1 : n + 1].T),
        write + of_depth * torch.tanh(normed @ w[n + 1]),
    )


def manifold_connections(config: Any, weights: Weights, h: Matrix) -> tuple[Tensor, Tensor, Tensor]:
    """Xie et al. 2025, eq. 7–9; softmax, ε and the last division of columns as in DeepSeek-V4."""
    n, eps = config.streams, config.eps
    w, b, scale = (weights[f"connections.{name}"] for name in ("weight", "bias", "scale"))
    z = w @ unit(h.flatten(), eps)
    read = sigmoid(scale[0] * z[:n] + b[:n]) + eps
    write = 2 * sigmoid(scale[1] * z[n : 2 * n] + b[n : 2 * n])
    shares = torch.exp(scale[2] * z[2 * n :] + b[2 * n :]).reshape(n, n)
    mix = shares / shares.sum(1, keepdim=True) + eps
    for step in range(config.iterations):
        if step > 0:
            mix = mix / (mix.sum(1, keepdim=True) + eps)
        mix = mix / (mix.sum(0, keepdim=True) + eps)
    return read, mix, write


def unit(x: Float[Tensor, " width"], eps: float) -> Float[Tensor, " width"]:
    """`x / √(mean(x²) + ε)`."""
    return x / ((x**2).mean() + eps).sqrt()


def summed(config: Any, weights: Weights, h: Matrix) -> Tensor:
    """The sum of the streams (Zhu et al. 2024, §2)."""
    return h.sum(0)


def weighted(config: Any, weights: Weights, h: Matrix) -> Tensor:
    """A weighted sum of the streams, as in DeepSeek-V4."""
    w, b, scale = (weights[f"collapse.{name}"] for name in ("weight", "bias", "scale"))
    return (sigmoid(scale * (w @ unit(h.flatten(), config.eps)) + b) + config.eps) @ h


HYPER_CONNECTIONS = StreamsDefinition(hyper_connections, summed)
MANIFOLD_CONNECTIONS = StreamsDefinition(manifold_connections, weighted)
