"""Type aliases for the tensor shapes that are used across `nn`.

Shapes that only one file uses are named in that file. Slots (indices into a stored sequence) have
their own types in `masks`.
"""

from jaxtyping import Bool, Float
from torch import Tensor

Hidden = Float[Tensor, "batch seq d_model"]
"""Hidden states: a vector for each token of each row."""

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

KeysValues = tuple[Keys, Keys]
"""The keys and the values."""
