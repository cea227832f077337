"""Norms of queries, keys and values: of each head, or of all heads of a token together."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import nn

from addnorm.nn.norms import NoNorm, NormConfig, build_norm
from addnorm.nn.splits import WHOLE_INPUT, Split, Splits
from addnorm.nn.types import Heads, Valid

Over = Literal["head", "heads"]


class HeadsTogether(nn.Module):
    """`split(norm(concat(heads)))`: a norm over all heads of a token together.

    OLMo 2 (OLMo Team 2024, §3.3). Split over processes, each has some heads, and gathers those of
    the others before the norm.
    """

    splits: ClassVar[Splits] = {WHOLE_INPUT: Split(1, "n_heads", copied=True)}

    def __init__(self, norm: nn.Module, n_heads: int) -> None:
        super().__init__()
        self.norm = norm
        self.n_heads = n_heads

    def forward(self, heads: Heads, valid: Valid | None = None) -> Heads:
        rows = heads.transpose(1, 2)
        return self.norm(rows.flatten(-2), valid).unflatten(-1, rows.shape[2:]).transpose(1, 2)


@dataclass(frozen=True, kw_only=True)
class HeadNorms:
    """The norms of an attention layer: of queries and keys, of rotated ones, and of values."""

    projected: NormConfig | None = None
    """Of queries and keys, before the rotation."""
    over: Over = "head"
    """Whether that is of each head, or of all heads of a token together."""
    rotated: NormConfig | None = None
    """Of each head of queries and keys, after the rotation."""
    values: NormConfig | None = None
    """Of each head of values."""

    def build(self, n_heads: int, d_head: int) -> nn.Module:
        """The norm for queries or keys with this many heads; the identity if there is none."""
        if self.projected is None:
            return NoNorm()
        if self.over == "head":
            return build_norm(self.projected, d_head)
        return HeadsTogether(build_norm(self.projected, n_heads * d_head), n_heads)

    def build_rotated(self, d_head: int) -> nn.Module | None:
        """The norm of rotated queries or keys."""
        return None if self.rotated is None else build_norm(self.rotated, d_head)

    def build_values(self, d_head: int) -> nn.Module | None:
        """The norm of values."""
        return None if self.values is None else build_norm(self.values, d_head)
