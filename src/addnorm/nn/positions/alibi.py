"""ALiBi: a bias that decreases linearly with distance, with one slope per head."""

from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from addnorm.config import config
from addnorm.nn.context import Context
from addnorm.nn.functional import wide_dtype
from addnorm.nn.positions.position import BuildContext, PairBias, Position, distance_bias, placed
from addnorm.nn.splits import Split, Splits
from addnorm.nn.types import Queries


def slopes(n_heads: int) -> Float[Tensor, " heads"]:
    """`m_h = 2^(-8h/H)` for `h = 1 … H`, in float64 (Press et al. 2022, §3).

    If H is not a power of two: the slopes for the next lower power, then every other slope for the
    next higher power, as in the authors' code.
    """
    power = 1 << (n_heads.bit_length() - 1)
    steps = [*range(1, power + 1), *(h + 0.5 for h in range(n_heads - power))]
    return 2 ** (-8 * torch.tensor(steps, dtype=torch.float64, device="cpu") / power)


class ALiBi(Position):
    """Adds `-m_h |i - j|` to the score of position `i` against `j` (Press et al. 2022, §3).

    The paper has `-m_h (i - j)`, which is the same under its causal mask; the distance serves
    bidirectional attention too. Has no parameters. Computed in float32, or float64 where the
    queries are.
    """

    splits: ClassVar[Splits] = {"slopes": Split(0)}

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        # Not a buffer: must not be cast to bfloat16 with the model.
        self.slopes = placed(slopes(n_heads))

    def score_bias(self, q: Queries, ctx: Context) -> PairBias:
        falls = -self.slopes.to(wide_dtype(q.dtype)).to(q.device)
        return distance_bias(ctx, lambda head, distance: falls[head] * distance)


@config
class ALiBiConfig:
    """Linear biases; nothing to choose."""

    kind: Literal["alibi"] = "alibi"

    def build(self, build_context: BuildContext) -> ALiBi:
        return ALiBi(build_context.n_heads)
