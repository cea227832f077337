"""The vector head: one vector for a whole text, picture or sound, as `embed` returns it."""

from collections.abc import Callable
from typing import Any, Literal

from jaxtyping import Float
from pydantic import PositiveInt
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.linear import Linear
from addnorm.nn.pooling import (
    AttentionPoolingConfig,
    JoinedPoolingConfig,
    Pooled,
    PoolingConfig,
    RealTokens,
    build_pooling,
    pooled_width,
    real_tokens,
)
from addnorm.nn.types import Hidden

Vectors = Float[Tensor, "inputs width"]


class VectorHead(nn.Module):
    """`W pool(x) + b`: the vector of each input, without its padding.

    Reimers & Gurevych 2019, §3; with a map to a space that is shared with other inputs, Radford et
    al. 2021 (CLIP), §2.3. Without a map the vector is `pool(x)`.
    """

    def __init__(
        self, pooling: Callable[[Hidden, RealTokens], Pooled], proj: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.pool = pooling
        self.proj = proj

    def forward(self, x: Hidden, ctx: Context) -> Vectors:
        pooled = self.pool(x, real_tokens(x, ctx))
        return pooled if self.proj is None else self.proj(pooled)


@config
class VectorHeadConfig:
    """One vector for the whole input by pooling, such as DINOv2's class token.

    With a `width` it is mapped to a space of this many numbers, as in CLIP.
    """

    kind: Literal["vector"] = "vector"
    pooling: PoolingConfig = "mean"
    """How an input becomes one vector: as in the classification head."""
    width: PositiveInt | None = None
    """The size of the space that the vector is mapped to; by default it is not mapped."""
    bias: bool = False
    """Whether that map has a bias."""

    def __post_init__(self) -> None:
        if self.bias and self.width is None:
            raise ValueError("bias = true is of a map to another space: give width with it")

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Mean pooling, a projection, and poolings with settings."""
        return {
            "vector": cls(),
            "vector_mapped": cls(pooling="last", width=3, bias=True),
            "vector_joined": cls(pooling=JoinedPoolingConfig(first=2, skipped=1)),
            "vector_attention": cls(pooling=AttentionPoolingConfig(n_heads=2), width=3),
        }

    def width_of(self, d_model: int) -> int:
        """The size of the vectors of a model of this width."""
        return self.width or pooled_width(self.pooling, d_model)

    def build(self, d_model: int, n_outputs: int) -> VectorHead:
        pooling, width = build_pooling(self.pooling, d_model)
        proj = None if self.width is None else Linear(width, self.width, bias=self.bias)
        return VectorHead(pooling, proj)
