"""Rows of ids as one tensor, padded on the right, with the mask of the real tokens."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def tensors(rows: Sequence[list[int]]) -> list[Int[Tensor, " _"]]:
    """Return each row of ids as a tensor."""
    return [torch.tensor(row) for row in rows]


def padded(rows: Sequence[Int[Tensor, " _"]], value: int, width: int) -> Int[Tensor, "batch seq"]:
    """Return the rows as one tensor, filled up on the right with `value`."""
    out = torch.full((len(rows), width), value)
    for line, row in zip(out, rows, strict=True):
        line[: len(row)] = row
    return out


def with_valid(
    name: str, valid_name: str, rows: Sequence[Int[Tensor, " _"]], pad_id: int, width: int
) -> dict[str, Tensor]:
    """Return the rows as an argument of a model, and where some are padded, their mask."""
    tokens = {name: padded(rows, pad_id, width)}
    lengths = torch.tensor([len(row) for row in rows])
    if bool((lengths == width).all()):
        return tokens
    valid: Bool[Tensor, "batch seq"] = torch.arange(width) < lengths[:, None]
    return {**tokens, valid_name: valid}
