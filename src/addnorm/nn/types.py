"""Names for the shapes of tensors that are used across `nn`.

One name has one meaning; what only one file needs is named there. Slots, which are indices of
places in a sequence, have names of their own in `masks`.
"""

from jaxtyping import Bool, Float
from torch import Tensor

Hidden = Float[Tensor, "batch seq d_model"]
"""Hidden states: a vector for each token of each row."""

TokenVectors = Float[Tensor, "*tokens d_model"]
"""Vectors of tokens, however those are arranged."""

Valid = Bool[Tensor, "batch seq"]
"""Which tokens are real, and not padding."""

Queries = Float[Tensor, "batch heads q_seq d_head"]
"""The queries of every head, or what attention gives for them."""

Keys = Float[Tensor, "batch kv_heads kv_seq d_head"]
"""The keys, or the values, of every key/value head."""

ExpandedKeys = Float[Tensor, "batch heads kv_seq d_head"]
"""Keys or values once for each query head, where several query heads share one."""

Heads = Float[Tensor, "batch heads seq d_head"]
"""A vector for each head of each token."""

Values = Float[Tensor, "batch kv_heads kv_seq d_value"]
"""Values of every key/value head, where they may be wider than the keys."""

Mixed = Float[Tensor, "batch heads q_seq d_value"]
"""What attention gives for every head of every query: its values, weighed."""

KeysValues = tuple[Keys, Keys]
"""The keys and the values."""
