"""ALiBi as Falcon-RW computes it: of keys alone, in bfloat16, and scaled as products are."""

from typing import Any, ClassVar, Literal

from jaxtyping import Float
from torch import Tensor

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.functional import wide_dtype
from addnorm.nn.positions.alibi import slopes
from addnorm.nn.positions.position import BuildContext, PairBias, Position, placed
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import Queries


class RoundedALiBi(Position):
    """Adds `s · b(b(m_h) · b(j))` to the score of key position `j`; `b` rounds to bfloat16.

    `s` is the factor of products, as `1/√d_head`. Under a causal mask, `m_h j` is ALiBi's
    `-m_h (i - j)` but for a number of the row, which the softmax leaves out; rounded, neighbours
    beyond position 256 share a bias (Falcon-RW: Penedo et al. 2023, 2306.01116, and their code).
    """

    splits: ClassVar[Splits] = {"slopes": Split(0)}

    def __init__(self, n_heads: int, scale: float) -> None:
        super().__init__()
        self.slopes = placed(slopes(n_heads))  # not a buffer, as in ALiBi
        self.scale = scale

    def score_bias(self, q: Queries, ctx: Context) -> PairBias:
        rounded = self.slopes.float().bfloat16().to(q.device)
        there, wide = ctx.kv_positions, wide_dtype(q.dtype)

        def tile(rows: slice, keys: slice) -> Float[Tensor, "#batch heads q_seq kv_seq"]:
            bias = rounded[:, None, None] * there[:, None, None, keys].bfloat16()
            n = len(range(*rows.indices(ctx.positions.shape[1])))
            return (self.scale * bias.to(wide)).expand(-1, -1, n, -1)

        def at(row: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
            row = row if there.shape[0] > 1 else row * 0  # one row shared by all
            return self.scale * (rounded[head] * there[row, j].bfloat16()).to(wide)

        return PairBias(tile, at)


@config
class RoundedALiBiConfig:
    """Linear biases of keys in bfloat16; nothing to choose."""

    kind: Literal["rounded_alibi"] = "rounded_alibi"

    @classmethod
    def examples(cls) -> dict[str, Any]:
        """No examples here: it is for decoders, and is tested with them."""
        return {}

    def conflict(self, around: BuildContext) -> str | None:
        """They grow with the position of a key, so that nothing may look ahead."""
        if not around.causal:
            return "rounded_alibi positions are for decoders and causal encoders: use 'alibi'"
        return None

    def build(self, build_context: BuildContext) -> RoundedALiBi:
        return RoundedALiBi(build_context.n_heads, build_context.scale)
