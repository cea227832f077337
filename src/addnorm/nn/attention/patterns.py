"""Attention patterns: the mask that a layer adds to the mask of the forward pass."""

from typing import Annotated, Any, Literal, Protocol, runtime_checkable

from pydantic import NonNegativeInt, PositiveInt

from addnorm.config import config
from addnorm.nn.built import built
from addnorm.nn.masks import Blocks, Full, Mask, Window
from addnorm.parts import Family


@config
class FullPatternConfig:
    """No further mask: a token attends to all that the mask of the forward pass allows."""

    kind: Literal["full"] = "full"

    def build(self) -> Full:
        return Full()


@config
class WindowPatternConfig:
    """Keys less than `size` slots away: earlier ones in a decoder, on both sides in an encoder."""

    kind: Literal["window"] = "window"
    size: PositiveInt
    """How many positions a query sees, itself included: backwards in a decoder, to each side in an
    encoder.
    """

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Small windows."""
        return {"window": cls(size=3), "window_of_one": cls(size=1)}

    def build(self) -> Window:
        return Window(self.size)


@config
class BlocksPatternConfig:
    """Block-sparse: blocks of `size`, `local` on either side, and the first `n_global` for all."""

    kind: Literal["blocks"] = "blocks"
    size: PositiveInt = 64
    """Tokens in a block."""
    local: NonNegativeInt = 1
    """Blocks that a query sees on either side of its own."""
    n_global: NonNegativeInt = 0
    """Blocks at the start that every token sees, and that see every token."""

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """Small blocks, with and without neighbours."""
        return {
            "blocks": cls(size=2, local=1, n_global=1),
            "blocks_alone": cls(size=2, local=0),
        }

    def build(self) -> Blocks:
        return Blocks(self.size, self.local, self.n_global)


@runtime_checkable
class PatternPart(Protocol):
    """A configuration of an attention pattern; builds the mask that a layer adds."""

    def build(self) -> Mask: ...


PatternConfig = Annotated[
    FullPatternConfig | WindowPatternConfig | BlocksPatternConfig | PatternPart,
    Family("pattern", PatternPart),
]
"""Any attention pattern, built-in or custom."""


def build_pattern(pattern: PatternConfig) -> Mask:
    """The mask of a layer. Raises `InputError` if a custom part builds none."""
    return built(pattern, pattern.build(), Mask, "a pattern must be a Mask of addnorm.nn.masks")
