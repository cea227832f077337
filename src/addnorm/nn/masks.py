"""Attention masks as values, combined with `&` and evaluated once per forward pass.

A mask is a predicate over slots. A slot is an index into the sequence as stored, padding and cached
tokens included: query slot `q` may attend to key slot `kv` of batch row `batch` where
`mask.allows(batch, q, kv)` is true. A mask that depends on distances or on places in a text, such
as a window, speaks of positions instead, and `mask.at(positions)` is the same mask over slots.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import inf

import torch
from jaxtyping import Bool, Int
from torch import Tensor

DENSE_LIMIT = 2**25
"""Number of slot pairs up to which a mask is materialised whole; larger masks are tiled."""

TILE = 128
"""Minimum number of queries in a tile of a narrow mask."""

Reach = tuple[float, float]
"""The largest distance that a query may attend backwards and forwards."""

QuerySlots = Int[Tensor, " q_seq"]
KeySlots = Int[Tensor, " kv_seq"]


class Mask(ABC):
    """A predicate on (batch row, query slot, key slot); `a & b` allows what both allow."""

    @abstractmethod
    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        """Evaluate the predicate on broadcastable indices, like FlexAttention's `mask_mod`."""

    @property
    def reach(self) -> Reach:
        """The largest distance, in positions, that a query may attend backwards and forwards."""
        return inf, inf

    def at(self, positions: Int[Tensor, "#batch kv_seq"]) -> "Mask":
        """The mask for rows in which slot `s` holds position `positions[row, s]` of its text.

        Masks that speak of the slots themselves, such as padding, return themselves.
        """
        return At(self, positions)

    def __and__(self, other: "Mask") -> "Mask":
        if isinstance(other, Full) or self == other:
            return self
        return other if isinstance(self, Full) else And(self, other)

    def dense(
        self, q_slots: QuerySlots, kv_slots: KeySlots, batch: int
    ) -> Bool[Tensor, "#batch 1 q_seq kv_seq"]:
        """The boolean mask over all pairs of slots, broadcastable over heads."""
        rows = torch.arange(batch, device=q_slots.device)
        allowed = self.allows(rows[:, None, None], q_slots[:, None], kv_slots)
        allowed = allowed.expand(*allowed.shape[:-2], *q_slots.shape, *kv_slots.shape)
        return allowed[None, None] if allowed.ndim == 2 else allowed[:, None]

    def on(
        self, q_slots: QuerySlots, kv_slots: KeySlots, batch: int, reach: Reach | None = None
    ) -> "Evaluated":
        """Evaluate the mask on these slots, in one of the forms that attention cores accept.

        `q_slots` must be the last of `kv_slots`, as in self-attention with a cache; `reach` is how
        many slots the mask reaches, by default as many as positions. In an exported graph, where
        lengths are dynamic, the mask is always evaluated whole.
        """
        return self._on(q_slots, kv_slots, batch, self.reach if reach is None else reach)

    def among(self, q_slots: QuerySlots, kv_slots: KeySlots, batch: int) -> "Evaluated":
        """Evaluate the mask on queries at any places among the keys, in whatever order they are."""
        return self._on(q_slots, kv_slots, batch, (inf, inf))

    def _on(
        self, q_slots: QuerySlots, kv_slots: KeySlots, batch: int, reach: Reach
    ) -> "Dense | Tiled":
        if torch.compiler.is_exporting():
            return Dense(self.dense(q_slots, kv_slots, batch))
        whole, far = q_slots.shape[0] * kv_slots.shape[0], sum(reach)
        # In two steps: a symbolic length times inf fails under torch.compile.
        narrow = far < inf and kv_slots.shape[0] > 4 * (TILE + far)
        if whole * batch > DENSE_LIMIT or (whole and narrow):
            return Tiled(self, q_slots, kv_slots, batch, reach)
        return Dense(self.dense(q_slots, kv_slots, batch))


@dataclass(frozen=True)
class Full(Mask):
    """`-∞ < q - kv < ∞`: every query sees every key (Vaswani et al. 2017, §3.2)."""

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return torch.ones_like(q + kv, dtype=torch.bool)

    def at(self, positions: Int[Tensor, "#batch kv_seq"]) -> Mask:
        return self

    def on(
        self, q_slots: QuerySlots, kv_slots: KeySlots, batch: int, reach: Reach | None = None
    ) -> "Evaluated":
        return self

    def among(self, q_slots: QuerySlots, kv_slots: KeySlots, batch: int) -> "Evaluated":
        return self


@dataclass(frozen=True)
class Causal(Mask):
    """A query attends to itself and to earlier slots: `kv ≤ q`; a text's tokens are in order."""

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return kv <= q

    @property
    def reach(self) -> Reach:
        return inf, 0

    def at(self, positions: Int[Tensor, "#batch kv_seq"]) -> Mask:
        return self

    def on(
        self, q_slots: QuerySlots, kv_slots: KeySlots, batch: int, reach: Reach | None = None
    ) -> "Evaluated":
        if q_slots.shape == kv_slots.shape:
            return self
        return Full() if q_slots.shape[0] == 1 else super().on(q_slots, kv_slots, batch, reach)


@dataclass(frozen=True)
class Window(Mask):
    """`|q - kv| < size` in positions: behind the query under `Causal`, else on both sides.

    `Causal() & Window(w)` is the sliding window `q - w < kv ≤ q` (Beltagy et al. 2020, §3.1).
    """

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ValueError(f"a window needs at least 1 slot, got {self.size}")

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (q - kv).abs() < self.size

    @property
    def reach(self) -> Reach:
        return self.size - 1, self.size - 1


@dataclass(frozen=True)
class Blocks(Mask):
    """`|⌊q/size⌋ - ⌊kv/size⌋| ≤ local`, and the first `n_global` blocks with everything.

    Block-sparse: a text falls into blocks of `size`; a query sees its own, `local` on either side
    of it, and the global ones, which see everything themselves.

    The pattern of ETC and BigBird without its random blocks (Zaheer et al. 2020, §2).
    """

    size: int
    local: int = 1
    n_global: int = 0

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        q, kv = q // self.size, kv // self.size
        return ((q - kv).abs() <= self.local) | (torch.minimum(q, kv) < self.n_global)


@dataclass(frozen=True, eq=False)
class Prefix(Mask):
    """Prefix-LM: causal, but every query may attend to the first `lengths` tokens of its row.

    Attention within the prefix is bidirectional (Raffel et al. 2020, §3.2.1).
    """

    lengths: Int[Tensor, " batch"]

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return (kv <= q) | (kv < self.lengths[batch])


@dataclass(frozen=True, eq=False)
class Padding(Mask):
    """A query attends only to real tokens; `valid` is false at padding, on either side."""

    valid: Bool[Tensor, "batch kv_seq"]

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return self.valid[batch, kv]

    def at(self, positions: Int[Tensor, "#batch kv_seq"]) -> Mask:
        return self


@dataclass(frozen=True, eq=False)
class Segments(Mask):
    """A query attends only to its own document; `ids` numbers the documents packed in a row."""

    ids: Int[Tensor, "batch seq"]

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return self.ids[batch, q] == self.ids[batch, kv]

    def at(self, positions: Int[Tensor, "#batch kv_seq"]) -> Mask:
        return self


@dataclass(frozen=True, eq=False)
class Branches(Mask):
    """Tree attention: each of the last slots is a leaf, and `seen` marks its ancestors.

    Beams share the cache of their common prefix and are never copied (Miao et al. 2024, §4.2).
    `positions` gives the position of each slot in its branch.
    """

    seen: Bool[Tensor, "batch branches kv_seq"]
    positions: Int[Tensor, "batch kv_seq"]

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        _, branches, slots = self.seen.shape
        return self.seen[batch, q - (slots - branches), kv]

    def at(self, positions: Int[Tensor, "#batch kv_seq"]) -> Mask:
        return self

    def on(
        self, q_slots: QuerySlots, kv_slots: KeySlots, batch: int, reach: Reach | None = None
    ) -> "Evaluated":
        return Dense(self.seen[:, None])


@dataclass(frozen=True, eq=False)
class At(Mask):
    """A mask over positions, applied to slots: slot `s` holds position `positions[row, s]`."""

    mask: Mask
    positions: Int[Tensor, "#batch kv_seq"]

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        row = 0 if self.positions.shape[0] == 1 else batch  # one row may be shared by all
        return self.mask.allows(batch, self.positions[row, q], self.positions[row, kv])

    @property
    def reach(self) -> Reach:
        return self.mask.reach

    def at(self, positions: Int[Tensor, "#batch kv_seq"]) -> Mask:
        return self


@dataclass(frozen=True, eq=False)
class Dense(Mask):
    """A materialised mask, the same for every head."""

    allowed: Bool[Tensor, "#batch 1 q_seq kv_seq"]

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return self.allowed[batch if self.allowed.shape[0] > 1 else batch * 0, 0, q, kv]

    def at(self, positions: Int[Tensor, "#batch kv_seq"]) -> Mask:
        return self


@dataclass(frozen=True, eq=False)
class Tiled(Mask):
    """A mask that is evaluated tile by tile, because it is too large or very narrow.

    A query reaches at most as many slots backwards and forwards as `spans` holds.
    """

    mask: Mask
    q_slots: QuerySlots
    kv_slots: KeySlots
    batch: int
    spans: Reach = (inf, inf)

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return self.mask.allows(batch, q, kv)

    @property
    def reach(self) -> Reach:
        return self.spans

    def at(self, positions: Int[Tensor, "#batch kv_seq"]) -> Mask:
        return self

    def tile(self, rows: slice, keys: slice) -> Dense:
        """The boolean mask of one tile: some of the queries and some of the keys."""
        return Dense(self.mask.dense(self.q_slots[rows], self.kv_slots[keys], self.batch))


@dataclass(frozen=True, eq=False)
class And(Mask):
    """The intersection of two masks."""

    first: Mask
    second: Mask

    def allows(self, batch: Tensor, q: Tensor, kv: Tensor) -> Tensor:
        return self.first.allows(batch, q, kv) & self.second.allows(batch, q, kv)

    @property
    def reach(self) -> Reach:
        (back, ahead), (back_2, ahead_2) = self.first.reach, self.second.reach
        return min(back, back_2), min(ahead, ahead_2)

    def at(self, positions: Int[Tensor, "#batch kv_seq"]) -> Mask:
        return self.first.at(positions) & self.second.at(positions)


Evaluated = Full | Causal | Dense | Tiled
"""The forms in which an attention core takes a mask."""
