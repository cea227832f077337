"""Masks as values: who may attend to whom, combined with `&`, evaluated once per forward pass.

A mask is a predicate over slots. A slot is an index into the sequence as stored, padding and cached
tokens included: query slot `q` may attend to key slot `kv` of batch row `batch` where
`mask.allows(batch, q, kv)` is true.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor


class Mask(ABC):
    """A predicate on (batch row, query slot, key slot); `a & b` allows what both allow."""

    @abstractmethod
    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        """The verdict for index tensors that broadcast; the form of FlexAttention's `mask_mod`."""

    def __and__(self, other: "Mask") -> "Mask":
        if isinstance(other, Full) or self == other:
            return self
        return other if isinstance(self, Full) else And(self, other)

    def dense(
        self, q_slots: Int[Tensor, " q_seq"], kv_slots: Int[Tensor, " kv_seq"], batch: int
    ) -> Bool[Tensor, "#batch 1 q_seq kv_seq"]:
        """The verdict for every pair of slots, ready to broadcast over heads."""
        rows = torch.arange(batch, device=q_slots.device)
        allowed = self.allows(rows[:, None, None], q_slots[:, None], kv_slots)
        allowed = allowed.expand(*allowed.shape[:-2], len(q_slots), len(kv_slots))
        return allowed[None, None] if allowed.ndim == 2 else allowed[:, None]

    def on(
        self, q_slots: Int[Tensor, " q_seq"], kv_slots: Int[Tensor, " kv_seq"], batch: int
    ) -> "Full | Causal | Dense":
        """The mask on these slots in one of the three forms that an attention core knows.

        `q_slots` must be the last of `kv_slots`, as they are in self-attention with a cache.
        """
        return Dense(self.dense(q_slots, kv_slots, batch))


@dataclass(frozen=True)
class Full(Mask):
    """Every query sees every key: the neutral element of `&`."""

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return torch.ones_like(q + kv, dtype=torch.bool)

    def on(self, q_slots: Tensor, kv_slots: Tensor, batch: int) -> "Full | Causal | Dense":
        return self


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees itself and what came before it: `kv ≤ q`."""

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return kv <= q

    def on(self, q_slots: Tensor, kv_slots: Tensor, batch: int) -> "Full | Causal | Dense":
        if len(q_slots) == len(kv_slots):
            return self
        return Full() if len(q_slots) == 1 else Dense(self.dense(q_slots, kv_slots, batch))


@dataclass(frozen=True)
class Window(Mask):
    """A query sees keys less than `size` slots away: behind it under `Causal`, else on both sides.

    `Causal() & Window(w)` is the sliding window `q - w < kv ≤ q` (Beltagy et al. 2020, §3.1).
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a window needs at least 1 slot, got {self.size}")

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (q - kv).abs() < self.size


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """A query sees only real tokens; `valid` is false at padding, on whichever side it stands."""

    valid: Bool[Tensor, "batch kv_seq"]

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return self.valid[batch, kv]


@dataclass(frozen=True, eq=False)
class Segments(Mask):
    """A query sees only keys of its own document; `ids` numbers the documents packed in a row."""

    ids: Int[Tensor, "batch seq"]

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return self.ids[batch, q] == self.ids[batch, kv]


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A mask already evaluated, the same for every head."""

    allowed: Bool[Tensor, "#batch 1 q_seq kv_seq"]

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return self.allowed[batch if len(self.allowed) > 1 else batch * 0, 0, q, kv]


@dataclass(frozen=True, eq=False)
class And(Mask):
    """What both masks allow."""

    first: Mask
    second: Mask

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return self.first.allows(batch, q, kv) & self.second.allows(batch, q, kv)
