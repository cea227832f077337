"""Context: the immutable inputs that all layers of a forward pass share."""

from dataclasses import dataclass, replace
from math import inf
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from addnorm.nn import masks
from addnorm.nn.instance_norm import WindowStatistics
from addnorm.nn.masks import (
    Causal,
    Dense,
    Evaluated,
    Full,
    Mask,
    Padding,
    Reach,
    Segments,
    Tiled,
)
from addnorm.nn.types import KeysValues, Length


@dataclass(frozen=True)
class Memory:
    """An encoder's output with its attention mask.

    Where every layer already has its cached keys and values, only the shape of `hidden` matters,
    and its feature axis may be empty.
    """

    hidden: Float[Tensor, "memories memory_seq width"]
    mask: Evaluated


@runtime_checkable
class Readable(Protocol):
    """The keys and values that a layer has stored in this pass, for later layers to read."""

    def read(self, n: Length) -> KeysValues:
        """The keys and values of the last `n` slots, those of the new tokens included."""
        ...


@dataclass(frozen=True, kw_only=True)
class Context:
    """Positions, mask and memory of a forward pass over `seq` new tokens out of `kv_seq` in all.

    Slots are plain indices into the sequence as stored (see `masks`); the new tokens come last.
    `kv_positions` gives the position of each slot as masks and position encodings see it: padding
    is skipped, and every segment restarts at 0. `kv_valid` marks the real tokens; None means all.
    Where positions were given, `tree` says that the tokens before one may be anywhere. `several`
    says that a row may hold several texts; otherwise its real tokens continue one.
    `statistics` are those by which windows of a series were normalised, for a head to restore.
    `grid` has the rows and columns of the patches of a picture, which are the last tokens.
    Where `kv_slots` are not in order, `order` has the index of each slot among them (see `part`).
    `earlier` holds the keys and values of the earlier layer that a layer reads, if it reads one,
    and `vector` what the embedding has for this layer alone of each new token.
    """

    batch: int
    kv_positions: Int[Tensor, "#batch kv_seq"]
    q_slots: Int[Tensor, " seq"]
    kv_slots: Int[Tensor, " kv_seq"]
    mask: Mask
    kv_valid: Bool[Tensor, "batch kv_seq"] | None = None
    tree: bool = False
    several: bool = False
    memory: Memory | None = None
    statistics: WindowStatistics | None = None
    grid: tuple[Length, Length] | None = None
    order: Int[Tensor, " kv_seq"] | None = None
    earlier: Readable | None = None
    vector: Float[Tensor, "batch seq width"] | None = None

    @property
    def positions(self) -> Int[Tensor, "#batch seq"]:
        """The positions of the new tokens."""
        return self.kv_positions[:, self.past :]

    @property
    def valid(self) -> Bool[Tensor, "batch seq"] | None:
        """Which of the new tokens are real; None means all."""
        return None if self.kv_valid is None else self.kv_valid[:, self.past :]

    @property
    def within(self) -> Length:
        """The number of slots that the new tokens can reach, themselves included."""
        return self.kv_slots.shape[0]

    @property
    def past(self) -> Length:
        """The number of those slots that hold cached tokens."""
        return self.kv_slots.shape[0] - self.q_slots.shape[0]

    @classmethod
    def over(
        cls,
        tokens: Shaped[Tensor, "batch seq *features"],
        mask: Mask,
        *,
        valid: Bool[Tensor, "batch kv_seq"] | None = None,
        segments: Int[Tensor, "batch kv_seq"] | None = None,
        past: Length = 0,
        positions: Int[Tensor, "#batch kv_seq"] | None = None,
    ) -> "Context":
        """Build the context of `tokens` that follow `past` cached tokens.

        `valid` marks the real (non-padding) tokens among all slots, cached ones included.
        `positions` covers all slots too; by default they count from the start of each text. Nothing
        here depends on the value of a length, so lengths can stay symbolic while tracing. Raises
        `ValueError` if the shapes do not agree.
        """
        batch, seq = tokens.shape[:2]
        kv_slots = torch.arange(past + seq, device=tokens.device)
        if valid is not None:
            _same_shape("valid", valid, (batch, past + seq))
            mask = mask & Padding(valid)
        if segments is not None:
            _same_shape("segments", segments, (batch, past + seq))
            mask = mask & Segments(segments)
        tree = positions is not None
        if positions is None:
            positions = positions_of(kv_slots, valid, segments)
        return cls(
            batch=batch,
            kv_positions=positions,
            q_slots=kv_slots[past:],
            kv_slots=kv_slots,
            mask=mask.at(positions),
            kv_valid=valid,
            tree=tree,
            several=tree or segments is not None,
        )

    def restrict(self, pattern: Mask) -> "Context":
        """Combine the mask with `pattern` and evaluate it, once for all layers that share it.

        Only the slots within the pattern's reach of the new tokens stay, and caches keep no others.
        """
        if self.order is not None:
            mask = self.mask & pattern.at(self.kv_positions[:, self.order])
            return replace(self, mask=mask.among(self.q_slots, self.kv_slots, self.batch))
        mask = self.mask & pattern.at(self.kv_positions)
        first = self.first_in_reach(pattern.reach[0])
        return replace(
            self,
            mask=mask.on(self.q_slots, self.kv_slots[first:], self.batch, self.spans(mask.reach)),
            kv_slots=self.kv_slots[first:],
            kv_positions=self.kv_positions[:, first:],
            kv_valid=None if self.kv_valid is None else self.kv_valid[:, first:],
        )

    def part(self, slots: Int[Tensor, " seq"], others: Int[Tensor, " rest"]) -> "Context":
        """The context of the tokens in some slots, which attend to themselves and to `others`.

        The keys of the others come first, as those of cached tokens do. Together they are all slots
        of this context, which has no cached tokens and no evaluated mask yet.
        """
        kv_slots, memory = torch.cat([others, slots]), self.memory
        if memory is not None:
            memory = replace(memory, mask=_of_queries(memory.mask, slots))
        return replace(
            self,
            kv_positions=self.kv_positions[:, kv_slots],
            q_slots=slots,
            kv_slots=kv_slots,
            kv_valid=None if self.kv_valid is None else self.kv_valid[:, kv_slots],
            memory=memory,
            order=kv_slots.argsort(),
        )

    def first_in_reach(self, back: float) -> Length:
        """The first slot at most `back` tokens before a new or later token of its row.

        While tracing with dynamic lengths it is 0: the traced example must not decide the branch,
        and the mask hides slots out of reach.
        """
        past = self.past
        if back == inf or self.tree or type(past) is not int or past == 0:
            return 0
        if self.kv_valid is None or self.kv_valid.is_meta:
            return max(past - int(back), 0)
        if torch.compiler.is_compiling():
            return 0
        valid = self.kv_valid[:, :past]
        from_the_end = valid.flip(1).cumsum(1).flip(1)
        needed = (valid & (from_the_end <= back)).any(0)
        return int(torch.cat([needed, needed.new_ones(1)]).int().argmax())

    def spans(self, reach: Reach) -> Reach:
        """The largest number of slots that a reach in tokens covers, backwards and forwards.

        The same number without padding; infinite where it cannot be measured or is not worth it.
        """
        if self.tree:
            return inf, inf
        if self.kv_valid is None or max(reach) == 0:
            return reach
        measurable = not (self.kv_valid.is_meta or torch.compiler.is_compiling())
        back, ahead = (
            _widest(self.kv_valid, distance)
            if 0 < distance < inf and measurable and self.kv_slots.shape[0] > 4 * masks.TILE
            else (inf if distance else 0)
            for distance in reach
        )
        return back, ahead

    def attending(
        self,
        memory: Float[Tensor, "memories memory_seq width"],
        valid: Bool[Tensor, "memories memory_seq"] | None = None,
    ) -> "Context":
        """Add an encoder's output for cross-attention.

        Rows may share a memory: each of `n` memories serves `batch / n` consecutive rows. Raises
        `ValueError` if the shapes do not agree.
        """
        n = memory.shape[0]
        sharing = 1 if self.batch == n else self.batch // max(n, 1)  # allows an empty batch
        if self.batch != n * sharing:
            raise ValueError(f"memory has {n} rows, which {self.batch} rows cannot share evenly")
        if valid is None:
            return replace(self, memory=Memory(memory, Full()))
        _same_shape("valid", valid, memory.shape[:2])
        slots = torch.arange(valid.shape[1], device=valid.device)
        mask = Padding(valid).on(self.q_slots.repeat(sharing), slots, n)
        return replace(self, memory=Memory(memory, mask))


def _of_queries(mask: Evaluated, queries: Int[Tensor, " seq"]) -> Evaluated:
    """The mask of a memory, restricted to some of its queries."""
    assert not isinstance(mask, Causal), "a memory has no causal mask"
    match mask:
        case Dense(allowed):
            return Dense(allowed[:, :, queries])
        case Tiled():
            return replace(mask, q_slots=mask.q_slots[queries])
        case Full():
            return mask


def _widest(valid: Bool[Tensor, "batch seq"], distance: float) -> int:
    """The largest number of slots between two real tokens at most `distance` tokens apart."""
    if not valid.numel():
        return 0
    count = valid.long().cumsum(1)
    earliest = torch.searchsorted(count, (count - int(distance)).clamp(min=1))
    slots = torch.arange(valid.shape[1], device=valid.device)
    return int(((slots - earliest) * valid).amax())


def positions_of(
    slots: Int[Tensor, " seq"],
    valid: Bool[Tensor, "batch seq"] | None = None,
    segments: Int[Tensor, "batch seq"] | None = None,
) -> Int[Tensor, "#batch seq"]:
    """The position of each slot in its text: from 0 in every segment, skipping padding."""
    if valid is None and segments is None:
        return slots[None]
    real = torch.ones_like(slots)[None] if valid is None else valid.long()
    positions = real.cumsum(-1) - 1
    if segments is not None:
        starts = _differs_from_the_last(segments, slots, valid)
        positions = positions - torch.where(starts, positions, 0).cummax(-1).values
    return positions.clamp(min=0)


def _differs_from_the_last(
    segments: Int[Tensor, "batch seq"],
    slots: Int[Tensor, " seq"],
    valid: Bool[Tensor, "batch seq"] | None,
) -> Bool[Tensor, "batch seq"]:
    """Whether each (real) token belongs to another segment than the last token before it."""
    before = segments[:, :-1]
    if valid is not None:  # padding inside a segment does not interrupt it
        last = torch.where(valid, slots, 0).cummax(-1).values[:, :-1]
        before = segments.gather(1, last)
    changes = segments[:, 1:] != before
    if valid is not None:
        changes = changes & valid[:, 1:]
    return torch.cat([torch.ones_like(segments[:, :1], dtype=torch.bool), changes], dim=1)


def _same_shape(name: str, tensor: Tensor, shape: tuple[Length, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")
