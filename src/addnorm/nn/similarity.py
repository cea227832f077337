"""The similarity head of a bi-encoder, which compares the vectors of two texts."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from addnorm.config import Probability, config
from addnorm.nn.context import Context
from addnorm.nn.dropout import Dropout
from addnorm.nn.linear import Linear
from addnorm.nn.pooling import Pooled, PoolingConfig, RealTokens, build_pooling
from addnorm.nn.types import Hidden
from addnorm.nn.vectors import VectorHead, Vectors


class SimilarityHead(nn.Module):
    """`compare(u, v)` of the vectors `u, v = pool(x)` of two texts (Reimers & Gurevych 2019).

    The texts of a pair are neighbours in the batch: rows 0 and 1, rows 2 and 3, and so on. Padding
    takes no part in the pool.
    """

    def __init__(
        self,
        compare: nn.Module,
        *,
        pooling: Callable[[Hidden, RealTokens], Pooled],
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vectors = VectorHead(pooling)
        self.dropout = Dropout(dropout)
        self.compare = compare

    def forward(self, x: Hidden, ctx: Context) -> Float[Tensor, "pairs outputs"]:
        vectors = self.dropout(self.vectors(x, ctx))
        return self.compare(vectors[0::2], vectors[1::2])


class CosineSimilarity(nn.Module):
    """`low + (high - low) uᵀv / (‖u‖ ‖v‖)`: `low` where vectors have nothing in common.

    The regression objective of Reimers & Gurevych 2019, §3.
    """

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, u: Vectors, v: Vectors) -> Float[Tensor, "texts 1"]:
        return self.low + (self.high - self.low) * F.cosine_similarity(u, v)[:, None]


class DifferenceClassifier(nn.Module):
    """`W [u; v; |u - v|]`, without a bias: the logits of classes of pairs.

    The classification objective of Reimers & Gurevych 2019, §3.
    """

    def __init__(self, width: int, n_outputs: int) -> None:
        super().__init__()
        self.proj = Linear(3 * width, n_outputs, bias=False)

    def forward(self, u: Vectors, v: Vectors) -> Float[Tensor, "texts classes"]:
        return self.proj(torch.cat([u, v, (u - v).abs()], dim=-1))


@config
class SimilarityHeadConfig:
    """A number or a class for two texts, from a vector of each (Reimers & Gurevych 2019).

    A bi-encoder learns the vectors that `embed` gives, which can be computed once and compared with
    any others. A classification head with data that have `text_pair` reads both texts together
    instead, which is more accurate, but gives no vectors to compare.
    """

    kind: Literal["similarity"] = "similarity"
    problem: Literal["regression", "single_label"] = "regression"
    """The target of a pair: a number, by the cosine of its two vectors, or a class of several,
    by a map of both and of their difference.
    """
    pooling: PoolingConfig = "mean"
    """How a text becomes one vector: as in the classification head."""
    range: tuple[float, float] = (0.0, 1.0)
    """The numbers that the cosines 0 and 1 stand for: `[0, 5]` for judgements from 0 to 5."""
    dropout: Probability = 0.0
    """The dropout rate of the vectors."""

    def __post_init__(self) -> None:
        if self.range[0] == self.range[1]:
            raise ValueError(f"range = {list(self.range)} is one number: give two")

    @property
    def task(self) -> str:
        """The task of a model with this head."""
        return "classification" if self.problem == "single_label" else self.problem

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """No examples here: it reads rows in pairs, and is tested with them."""
        return {}

    def conflict(self, around: Any) -> str | None:
        """A similarity head needs an encoder of texts without early exits."""
        if around.kind != "encoder" or around.input.kind != "tokens":
            return (
                "a similarity head compares two texts: it needs model.kind = 'encoder' with "
                "model.input.kind = 'tokens'"
            )
        if around.exits:
            return "a similarity head has no early exits: leave model.exits out"
        return None

    def build(self, d_model: int, n_outputs: int) -> SimilarityHead:
        pooling, width = build_pooling(self.pooling, d_model)
        if self.problem == "single_label":
            compare = DifferenceClassifier(width, n_outputs)
        else:
            compare = CosineSimilarity(*self.range)
        return SimilarityHead(compare, pooling=pooling, dropout=self.dropout)
