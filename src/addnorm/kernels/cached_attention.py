"""Attention of the next tokens over cached keys and values, which stay where they are.

`addnorm::cached_attention` takes queries `[texts, queries, heads, d_head]`, and keys and values
`[texts, kv_heads, slots, width]`. A text's tokens are in all slots in order, or in the `slots`
`[texts, kv_seq]` of a buffer for many texts. `allowed` is `[texts, queries, kv_seq]`, `bias` is
`[texts, heads, queries, kv_seq]`; an axis of size one stands for any size. Keys and values have the
type of the queries, or are bfloat16.
"""

import torch
from torch import Tensor

OPERATOR = "cached_attention"

DTYPES = (torch.float32, torch.bfloat16)
"""The types of keys and values that the operator reads."""

torch.library.define(
    "addnorm::cached_attention",
    "(Tensor q, Tensor keys, Tensor values, Tensor? slots, Tensor? allowed, Tensor? bias, "
    "Tensor? sinks, float scale, float? softcap) -> Tensor",
)


def _outline(q: Tensor, keys: Tensor, values: Tensor, *others: object) -> Tensor:
    return q.new_empty(*q.shape[:3], values.shape[3])


torch.library.impl("addnorm::cached_attention", "Meta")(_outline)
