"""Learned position embeddings, for a fixed maximum length (BERT, GPT-2)."""

from typing import Literal

import torch
from torch import nn

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.nn.context import Context
from addnorm.nn.positions.position import BuildContext, NoPosition, Position
from addnorm.nn.types import Hidden


class Learned(Position):
    """`x + table[p]`, a table of `max_len × d_model` (Gehring et al. 2017, §3.1).

    Raises `InputError` for a position past the table: never a wrapped or clamped index. An exported
    graph cannot raise it; there, the bound check of the runtime refuses to read past the table.
    """

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_len, d_model)

    def embed(self, x: Hidden, ctx: Context) -> Hidden:
        n_rows = self.max_len
        # Positions never exceed slots, so their values are read only if there are too many slots.
        too_many = not torch.compiler.is_exporting() and ctx.kv_slots.shape[0] > n_rows
        if too_many and (last := int(ctx.positions.max())) >= n_rows:
            raise InputError(
                f"position {last} is past the learned table: this model knows {n_rows} positions "
                f"(0 to {n_rows - 1}). Shorten the input, or train with a larger max_len."
            )
        return x + self.table(ctx.positions)

    def in_layer(self, layer: int) -> Position:
        return NoPosition()

    @property
    def max_len(self) -> int:
        return self.table.num_embeddings


@config
class LearnedConfig:
    """A table of the model's `max_len` rows."""

    kind: Literal["learned"] = "learned"

    def build(self, build_context: BuildContext) -> Learned:
        return Learned(build_context.max_len, build_context.d_model)
