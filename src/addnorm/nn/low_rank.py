"""Low-rank changes of a matrix: LoRA and DoRA, as numbers."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LowRank:
    """`W + s B A` (Hu et al. 2021, §4.1), or its rows brought to a length each.

    With a `magnitude` m it is `m (W + s B A) / ‖W + s B A‖`, the norm that of each row (Liu et al.
    2024, eq. 5).
    """

    a: Float[Tensor, "rank d_in"]
    b: Float[Tensor, "d_out rank"]
    scale: float
    magnitude: Float[Tensor, " d_out"] | None = None

    def changed(self, weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "d_out d_in"]:
        """The matrix with this change, in the dtype of the matrix, computed in float32 or wider."""
        wide = torch.promote_types(weight.dtype, torch.float32)
        found = weight.to(wide) + self.scale * (self.b.to(wide) @ self.a.to(wide))
        if self.magnitude is not None:
            found = self.magnitude.to(wide)[:, None] * (found / divisors(found)[:, None])
        return found.to(weight.dtype)


def divisors(weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, " d_out"]:
    """The norm of each row, so that a row of zeros can be divided by it and stays zeros."""
    return row_norms(weight).clamp_min(torch.finfo(weight.dtype).tiny)


def row_norms(weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, " d_out"]:
    """The Euclidean norm of each row."""
    return weight.norm(dim=1)
