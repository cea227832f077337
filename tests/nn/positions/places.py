"""Shared by the position tests: contexts at given positions, and the resulting scores."""

import torch
from torch import Tensor

from addnorm.nn.context import Context
from addnorm.nn.masks import Full
from addnorm.nn.positions import Position

EVERYTHING = slice(None)


class Projections:
    """Those of two heads of four features: the input itself, and the input in reverse."""

    def queries(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (2, 4)).transpose(1, 2)

    def keys(self, y: Tensor) -> Tensor:
        return self.queries(y).flip(-1)

    def for_query_heads(self, k: Tensor, n_heads: int) -> Tensor:
        return k.repeat_interleave(n_heads // k.shape[1], dim=1)


PROJECTIONS = Projections()


def at(*rows: list[int], new: int | None = None) -> Context:
    """The context of tokens at these positions, one list for each row; the last `new` are new."""
    slots = torch.arange(len(rows[0]))
    return Context(
        batch=len(rows),
        kv_positions=torch.tensor(rows),
        q_slots=slots[-(new or len(slots)) :],
        kv_slots=slots,
        mask=Full(),
    )


def scores(
    position: Position, q: Tensor, k: Tensor, ctx: Context, *, scale: float | None = None
) -> Tensor:
    """`scale · q·k` plus the bias, with all that the scheme does to queries, keys and scores."""
    q, k = position.rotate(q, k, ctx)
    q, k = position.rotate_all(q, k, ctx)
    shared = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    plain = q @ shared.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    bias = position.content_bias(q, k, ctx, PROJECTIONS)
    return plain if bias is None else plain + bias(EVERYTHING, EVERYTHING)
