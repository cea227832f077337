"""Multi-token prediction: modules that predict tokens further ahead, one after another."""

from typing import Annotated, Any

import torch
from jaxtyping import Bool, Int
from pydantic import Field, NonNegativeFloat, PositiveInt
from torch import Tensor, nn

from addnorm.config import config
from addnorm.nn.blocks import Stack
from addnorm.nn.cache import KVCache
from addnorm.nn.context import Context
from addnorm.nn.heads import TokenHeadConfig
from addnorm.nn.linear import Linear
from addnorm.nn.types import Hidden

NO_TARGET = -100
"""The target of a slot that predicts nothing, as in the batches of training."""

MOST_AHEAD = 16


class TokenAhead(nn.Module):
    """`h'_i = stack(W [norm(h_i); norm(Emb(t_{i+k}))])`: the states of depth `k`.

    DeepSeek-AI 2024 (DeepSeek-V3), §2.2, eq. 21–23. The hidden state comes first, each half has a
    norm of its own, and `h_i` is that of the depth before, as the head reads it. The stack is a
    Transformer block with a final norm; embedding and head are the model's.
    """

    def __init__(
        self,
        d_model: int,
        hidden_norm: nn.Module,
        token_norm: nn.Module,
        stack: Stack,
        *,
        loss_weight: float,
    ) -> None:
        super().__init__()
        self.hidden_norm = hidden_norm
        self.token_norm = token_norm
        self.proj = Linear(2 * d_model, d_model, bias=False)
        self.stack = stack
        self.loss_weight = loss_weight

    def forward(
        self, hidden: Hidden, tokens: Hidden, ctx: Context, cache: KVCache | None = None
    ) -> Hidden:
        """The hidden states at this depth, from those of the depth before and embedded tokens."""
        halves = self.hidden_norm(hidden, ctx.valid), self.token_norm(tokens, ctx.valid)
        return self.stack(self.proj(torch.cat(halves, dim=-1)), ctx, cache)


def targets_ahead(
    targets: Int[Tensor, "batch seq"],
    k: int,
    valid: Bool[Tensor, "batch seq"] | None = None,
    segments: Int[Tensor, "batch seq"] | None = None,
) -> Int[Tensor, "batch rest"]:
    """The targets of depth `k`: slot `i` gets the target of slot `i + k`, if in the same text.

    Nothing is predicted across the end of a document: not from its last `k` slots.
    """
    ahead = targets[:, k:]
    if segments is not None:
        ahead = ahead.masked_fill(segments[:, k:] != segments[:, :-k], NO_TARGET)
    if valid is not None:
        ahead = ahead.masked_fill(~(valid[:, k:] & valid[:, :-k]), NO_TARGET)
    return ahead


@config
class MultiTokenConfig:
    """Modules that predict further tokens, each from the states of the module before."""

    depth: Annotated[PositiveInt, Field(le=MOST_AHEAD)] = 1
    """How many further tokens are predicted, each by a module of its own."""
    weight: NonNegativeFloat = 0.3
    """The factor of their mean loss in the loss of training."""

    def conflict(self, around: Any) -> str | None:
        """Multi-token prediction needs a head of tokens, and no early exits."""
        if around.exits:
            return "multi-token prediction reads the last layer alone: leave model.exits out"
        if not isinstance(around.head, TokenHeadConfig):
            return "multi-token prediction needs the head of tokens: leave model.mtp out"
        return None
