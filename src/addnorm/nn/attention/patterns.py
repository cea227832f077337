"""Patterns: which part of what the pass allows a layer's self-attention looks at."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from addnorm.config import config
from addnorm.nn.masks import Blocks, Full, Window


@config
class FullPatternConfig:
    """Everything."""

    kind: Literal["full"] = "full"

    def build(self) -> Full:
        return Full()


@config
class WindowPatternConfig:
    """Less than `size` slots away: behind the query in a decoder, on both sides in an encoder."""

    kind: Literal["window"] = "window"
    size: PositiveInt

    def build(self) -> Window:
        return Window(self.size)


@config
class BlocksPatternConfig:
    """Block-sparse: blocks of `size`, `local` on either side, and the first `n_global` for all."""

    kind: Literal["blocks"] = "blocks"
    size: PositiveInt = 64
    local: NonNegativeInt = 1
    n_global: NonNegativeInt = 0

    def build(self) -> Blocks:
        return Blocks(self.size, self.local, self.n_global)


PatternConfig = Annotated[
    FullPatternConfig | WindowPatternConfig | BlocksPatternConfig, Field(discriminator="kind")
]
"""Every pattern there is."""
