"""No position encoding: a decoder infers order from its causal mask (Kazemnejad et al. 2023)."""

from typing import Literal

from addnorm.config import config
from addnorm.nn.positions.position import BuildContext, Position


class NoPosition(Position):
    """`x + 0`: acts nowhere (Kazemnejad et al. 2023); self-attention is permutation equivariant."""


@config
class NoPositionConfig:
    """No positions at all."""

    kind: Literal["none"] = "none"

    def build(self, build_context: BuildContext) -> NoPosition:
        return NoPosition()
