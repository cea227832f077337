"""Differential attention: the difference of two attention maps, which cancels their common noise.

It is implemented as a core: queries, keys and values are those of multi-head attention, and heads
are paired. Heads 2i and 2i+1 give the two maps of pair i; their values are concatenated.
"""

import math
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.attention.core import EagerCore, Weights, fused
from addnorm.nn.attention.kernels import EVERYTHING, dot_product_attention, shared
from addnorm.nn.attention.scores import DotProduct
from addnorm.nn.attention.tiles import Attend, in_tiles, is_tiled
from addnorm.nn.functional import at_least_float32
from addnorm.nn.masks import Evaluated
from addnorm.nn.norms import RMSNorm
from addnorm.nn.positions.position import Bias
from addnorm.nn.splits import Splits
from addnorm.nn.types import HeadShape, Keys, Mixed, Queries, Values


def lambda_init(layer: int) -> float:
    """`0.8 - 0.6 exp(-0.3 (l - 1))` for layer `l = layer + 1` (Ye et al. 2024, §2.1, eq. 3)."""
    return 0.8 - 0.6 * math.exp(-0.3 * layer)


class DifferentialCore(nn.Module):
    """`norm((softmax(q₁ k₁ᵀ / √d) - λ softmax(q₂ k₂ᵀ / √d)) [v₁; v₂]) (1 - λ_init)` of each pair.

    Ye et al. 2024, §2.1, eq. 1–3: `λ = exp(λ_q1·λ_k1) - exp(λ_q2·λ_k2) + λ_init`, shared by the
    heads of a layer, `λ_init = 0.8 - 0.6 exp(-0.3 (l - 1))` in layer `l = 1, 2, …`; the norm is an
    RMSNorm of each pair alone. With fewer key/value heads, several pairs of queries share a pair of
    keys. A query that may attend to nothing gives zeros.
    """

    splits: ClassVar[Splits] = {}
    heads_together = 2

    def __init__(
        self, score: DotProduct, d_head: int, *, layer: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.score = score
        self.dropout = dropout
        self.lambda_init = lambda_init(layer)
        self.lambda_q1 = nn.Parameter(torch.empty(d_head))
        self.lambda_k1 = nn.Parameter(torch.empty(d_head))
        self.lambda_q2 = nn.Parameter(torch.empty(d_head))
        self.lambda_k2 = nn.Parameter(torch.empty(d_head))
        self.norm = RMSNorm(2 * d_head, eps=1e-5)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the vectors of λ from N(0, 0.1²), as the authors' code does."""
        for vector in (self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2):
            nn.init.normal_(vector, std=0.1)

    @property
    def strength(self) -> Float[Tensor, ""]:
        """`λ`, the weight of the second map in the difference, in at least float32."""
        vectors = self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2
        q1, k1, q2, k2 = map(at_least_float32, vectors)
        return (q1 @ k1).exp() - (q2 @ k2).exp() + self.lambda_init

    def forward(
        self, q: Queries, k: Keys, v: Keys, mask: Evaluated, bias: Bias | None = None
    ) -> Queries:
        score, values = fused(self.score), _side_by_side(v)
        q = score.queries(q)
        attend = partial(
            dot_product_attention,
            scale=score.scale,
            dropout=self.dropout if self.training else 0.0,
        )
        first, second = (
            _map(attend, q[:, i::2], k[:, i::2], values, mask, _of_every_second(bias, i))
            for i in (0, 1)
        )
        return self._of_difference(first - self.strength.to(first.dtype) * second)

    def _of_difference(
        self, mixed: Float[Tensor, "batch pairs q_seq both"]
    ) -> Float[Tensor, "batch heads q_seq d_head"]:
        return _one_after_another(self.norm(mixed) * (1.0 - self.lambda_init))

    def weights(self, q: Queries, k: Keys, mask: Evaluated, bias: Bias | None = None) -> Weights:
        """Both maps of every pair before the subtraction: heads 2i and 2i+1 belong to pair i."""
        score = fused(self.score)
        q, eager = score.queries(q), EagerCore(DotProduct(score.scale))
        maps = [
            eager.weights(q[:, i::2], k[:, i::2], mask, _of_every_second(bias, i)) for i in (0, 1)
        ]
        return torch.stack(maps, dim=2).flatten(1, 2)

    def combine(self, weights: Weights, v: Keys) -> Queries:
        """The output of attention with the two maps that `weights` returns."""
        first, second = weights[:, ::2], weights[:, 1::2]
        values = shared(_side_by_side(v), first.shape[1])
        return self._of_difference((first - self.strength.to(first.dtype) * second) @ values)


@config
class DifferentialCoreConfig:
    """The difference of two attention maps; `n_heads` and `n_kv_heads` count both, and are even."""

    kind: Literal["differential"] = "differential"

    def conflict(self, around: HeadShape) -> str | None:
        """Odd head counts conflict: heads are paired."""
        if around.n_heads % 2 or around.n_kv_heads % 2:
            return (
                f"differential attention pairs heads: n_heads = {around.n_heads} and "
                f"n_kv_heads = {around.n_kv_heads} must be even"
            )
        return None

    def build(
        self, heads: HeadShape, score: nn.Module, dropout: float, layer: int
    ) -> DifferentialCore:
        return DifferentialCore(fused(score), heads.d_head, layer=layer, dropout=dropout)


def _map(
    attend: Attend, q: Queries, k: Keys, v: Values, mask: Evaluated, bias: Bias | None
) -> Mixed:
    """Compute one map of every pair, in tiles where it is large."""
    if is_tiled(q, k, mask, bias):
        return in_tiles(attend, q, k, v, mask, bias)
    return attend(q, k, v, mask, None if bias is None else bias(EVERYTHING, EVERYTHING))


def _side_by_side(
    v: Float[Tensor, "batch kv_heads kv_seq d_head"],
) -> Float[Tensor, "batch pairs kv_seq both"]:
    """The values of each pair of heads, joined along their features."""
    return v.unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)


def _one_after_another(
    mixed: Float[Tensor, "batch pairs q_seq both"],
) -> Float[Tensor, "batch heads q_seq d_head"]:
    """The inverse of `_side_by_side`."""
    return mixed.unflatten(3, (2, -1)).transpose(2, 3).flatten(1, 2)


def _of_every_second(bias: Bias | None, first: int) -> Bias | None:
    """The bias of heads `first`, `first + 2`, …"""
    return None if bias is None else lambda rows, keys: bias(rows, keys)[:, first::2]
