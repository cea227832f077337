"""The vector head: one vector for a whole text, picture or sound, which is what `embed` gives."""

from collections.abc import Callable
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.pooling import (
    JoinedPoolingConfig,
    Pooled,
    PoolingConfig,
    RealTokens,
    build_pooling,
    real_tokens,
)
from addnorm.nn.types import Hidden

Vectors = Float[Tensor, "inputs width"]


class VectorHead(nn.Module):
    """`pool(x)`: the vector of each input (Reimers & Gurevych 2019, §3), without its padding."""

    def __init__(self, pooling: Callable[[Hidden, RealTokens], Pooled]) -> None:
        super().__init__()
        self.pool = pooling

    def forward(self, x: Hidden, ctx: Context) -> Vectors:
        return self.pool(x, real_tokens(x, ctx))


@config
class VectorHeadConfig:
    """A vector of the whole input by its pooling alone, such as DINOv2's class token."""

    kind: Literal["vector"] = "vector"
    pooling: PoolingConfig = "mean"
    """How an input becomes one vector: as in the classification head."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """The mean, and a joined pooling, also where texts have fewer tokens."""
        return {
            "vector": cls(),
            "vector_joined": cls(pooling=JoinedPoolingConfig(first=2, skipped=1)),
        }

    def build(self, d_model: int, n_outputs: int) -> VectorHead:
        pooling, _ = build_pooling(self.pooling, d_model)
        return VectorHead(pooling)
