"""The attention core: the one seam where kernels, score functions and inspection attach.

A core computes `core(q, k, v, mask, bias)` from the projected heads. It takes an evaluated mask,
shares each key/value head among `heads / kv_heads` query heads, and returns zeros, with zero
gradient, for a query that may attend to nothing. A mask or a bias that would need memory quadratic
in the length is evaluated tile by tile (see `tiles`). `core.weights(q, k, mask, bias)` returns the
attention weights, for inspection.
"""

from functools import partial
from typing import ClassVar, Literal, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn import functional
from addnorm.nn.attention.kernels import (
    EVERYTHING,
    BiasTensor,
    allowed_of,
    dot_product_attention,
    shared,
)
from addnorm.nn.attention.scores import Additive, DotProduct
from addnorm.nn.attention.tiles import in_tiles, is_tiled
from addnorm.nn.dropout import Dropout
from addnorm.nn.masks import Evaluated
from addnorm.nn.positions.position import Bias
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import HeadShape, Keys, Mixed, Queries, Values
from addnorm.parts import is_ours

Weights = Float[Tensor, "batch heads q_seq kv_seq"]


@runtime_checkable
class HasWeights(Protocol):
    """An attention core that can return its attention weights."""

    def weights(self, q: Queries, k: Keys, mask: Evaluated, bias: Bias | None = None) -> Weights:
        """The attention weight of every key for every query."""
        ...


class SDPACore(nn.Module):
    """`softmax(scale · kᵀ W q + bias) v` by torch's fused kernels (Dao et al. 2022, alg. 1)."""

    splits: ClassVar[Splits] = {}

    def __init__(self, score: DotProduct | None = None, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.score = score
        self.dropout = dropout

    def forward(
        self, q: Queries, k: Keys, v: Values, mask: Evaluated, bias: Bias | None = None
    ) -> Mixed:
        score = None if self.score is None else fused(self.score)
        attend = partial(
            dot_product_attention,
            scale=None if score is None else score.scale,
            dropout=self.dropout if self.training else 0.0,
        )
        q = q if score is None else score.queries(q)
        if is_tiled(q, k, mask, bias):
            return in_tiles(attend, q, k, v, mask, bias)
        return attend(q, k, v, mask, None if bias is None else bias(EVERYTHING, EVERYTHING))

    def weights(self, q: Queries, k: Keys, mask: Evaluated, bias: Bias | None = None) -> Weights:
        """The attention weights of this score, as the reference core computes them."""
        if self.score is None:
            return EagerCore().weights(q, k, mask, bias)
        score = fused(self.score)
        return EagerCore(DotProduct(score.scale)).weights(score.queries(q), k, mask, bias)


NOT_FUSED = (
    "no fused kernel computes additive or capped scores: leave core unset, or use kind = 'eager'"
)


@config
class SDPACoreConfig:
    """torch's fused kernels; for scores that are dot products."""

    kind: Literal["sdpa"] = "sdpa"

    def build(self, heads: HeadShape, score: nn.Module, dropout: float, layer: int) -> SDPACore:
        return SDPACore(fused(score), dropout=dropout)


class EagerCore(nn.Module):
    """`softmax(score(q, k) + bias) v` in plain products (Vaswani et al. 2017, eq. 1).

    The reference; it shows its weights. Without a `score` it is the scaled dot product.
    """

    splits: ClassVar[Splits] = {"weights_dropout": Split(1)}

    def __init__(self, score: nn.Module | None = None, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.score = functional.scaled_dot_scores if score is None else score
        self.weights_dropout = Dropout(dropout)

    def forward(
        self, q: Queries, k: Keys, v: Values, mask: Evaluated, bias: Bias | None = None
    ) -> Mixed:
        width = q.shape[-1] if isinstance(self.score, Additive) else 1
        if is_tiled(q, k, mask, bias, width):
            return in_tiles(self.attend, q, k, v, mask, bias, width)
        return self.attend(q, k, v, mask, None if bias is None else bias(EVERYTHING, EVERYTHING))

    def attend(
        self, q: Queries, k: Keys, v: Values, mask: Evaluated, bias: BiasTensor | None
    ) -> Mixed:
        """Compute the whole output at once, by the definition."""
        weights = self.weights_dropout(self._weights(q, k, mask, bias))
        return weights @ shared(v, q.shape[1])

    def weights(self, q: Queries, k: Keys, mask: Evaluated, bias: Bias | None = None) -> Weights:
        """The attention weights: rows sum to one, or to zero if every key is masked."""
        return self._weights(q, k, mask, None if bias is None else bias(EVERYTHING, EVERYTHING))

    def _weights(self, q: Queries, k: Keys, mask: Evaluated, bias: BiasTensor | None) -> Weights:
        scores = self.score(q, shared(k, q.shape[1]))
        scores = scores if bias is None else scores + bias.to(scores.dtype)
        return functional.masked_softmax(scores, allowed_of(mask, q, k))


@config
class EagerCoreConfig:
    """Plain matrix products; on a CPU they are faster than fused kernels if there is dropout."""

    kind: Literal["eager"] = "eager"

    def build(self, heads: HeadShape, score: nn.Module, dropout: float, layer: int) -> EagerCore:
        return EagerCore(score, dropout=dropout)


def fused(score: nn.Module) -> DotProduct:
    """Return `score` if fused kernels can compute it. Raises `ValueError` for any other score."""
    if not isinstance(score, DotProduct) or not is_ours(type(score)) or score.softcap is not None:
        raise ValueError(NOT_FUSED)
    return score
