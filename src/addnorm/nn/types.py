"""Types that are used across `nn`: aliases for tensor shapes, and the sizes of attention heads.

Shapes that only one file uses are named in that file. Slots (indices into a stored sequence) have
their own types in `masks`.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float
from torch import Tensor

if TYPE_CHECKING:
    Length = int
else:
    Length = int | torch.SymInt
"""A number of tokens; symbolic while tracing."""

Hidden = Float[Tensor, "batch seq d_model"]
"""Hidden states: a vector for each token of each row."""

Stream = Float[Tensor, "batch seq _width"]
"""The residual stream, as wide as all streams where there are several (`hyper_connections`)."""

TokenVectors = Float[Tensor, "*tokens d_model"]
"""Token vectors with any leading axes."""

Valid = Bool[Tensor, "batch seq"]
"""A mask of the real (non-padding) tokens."""

Queries = Float[Tensor, "batch heads q_seq d_head"]
"""The queries of every head, or attention outputs of the same shape."""

Keys = Float[Tensor, "batch kv_heads kv_seq d_head"]
"""The keys, or the values, of every key/value head."""

ExpandedKeys = Float[Tensor, "batch heads kv_seq d_head"]
"""Keys or values expanded to one head per query head (GQA)."""

Heads = Float[Tensor, "batch heads seq d_head"]
"""A vector for each head of each token."""

Values = Float[Tensor, "batch kv_heads kv_seq d_value"]
"""Values of every key/value head, possibly wider than the keys."""

Mixed = Float[Tensor, "batch heads q_seq d_value"]
"""Attention outputs: the weighted sum of the values for every head and query."""

KeysValues = tuple[Keys, Values]
"""The keys and the values; of latent attention the latents and the shared keys."""


@dataclass(frozen=True)
class HeadShape:
    """The numbers of query heads and key/value heads, and the width of a head."""

    n_heads: int
    n_kv_heads: int
    d_head: int

    def __post_init__(self) -> None:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(
                f"n_heads = {self.n_heads} cannot share n_kv_heads = {self.n_kv_heads} evenly: "
                f"n_kv_heads must be one of {divisors(self.n_heads)}"
            )


def divisors(n: int) -> list[int]:
    """The divisors of `n` in ascending order."""
    return [d for d in range(1, n + 1) if n % d == 0]
