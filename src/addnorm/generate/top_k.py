"""The `k` largest numbers of each row, such as the most probable tokens of a vocabulary."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

GROUP = 64
"""How many neighbouring numbers a group has."""

ROOM = 4
"""How many times as many groups as numbers wanted there must be, or groups gain nothing."""


def top_k(
    x: Float[Tensor, "rows n"], k: int
) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
    """The values and places of `torch.topk`, on a CPU several times as fast for long rows.

    torch sorts each row in part. The `k` largest numbers are in the `k` groups with the largest
    maxima, so that only those are sorted. NaN counts as the largest, as in torch; which of equal
    numbers are returned is left open there, too. Raises `RuntimeError` if a row has fewer numbers.
    """
    n_rows, n = x.shape
    n_groups = n // GROUP
    if x.device.type != "cpu" or n_groups < ROOM * k:
        values, places = x.topk(k, dim=-1)
        return values, places
    end = n_groups * GROUP
    maxima = x[:, :end].unflatten(1, (n_groups, GROUP)).amax(-1)
    groups = maxima.topk(k, dim=-1, sorted=False).indices
    within = (GROUP * groups[..., None] + torch.arange(GROUP)).flatten(1)
    within = torch.cat([within, torch.arange(end, n).expand(n_rows, -1)], dim=1)
    values, chosen = x.gather(1, within).topk(k, dim=-1)
    return values, within.gather(1, chosen)
