"""Context: the immutable inputs that all layers of a forward pass share."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from addnorm.nn.cache import Length, first_in_reach
from addnorm.nn.instance_norm import WindowStatistics
from addnorm.nn.masks import Evaluated, Full, Mask, Padding, Segments


@dataclass(frozen=True)
class Memory:
    """An encoder's output with its attention mask.

    Where every layer already has its cached keys and values, only the shape of `hidden` matters,
    and its feature axis may be empty.
    """

    hidden: Float[Tensor, "memories memory_seq width"]
    mask: Evaluated


@dataclass(frozen=True, kw_only=True)
class Context:
    """Positions, mask and memory of a forward pass over `seq` new tokens out of `kv_seq` in all.

    Slots are plain indices into the sequence as stored (see `masks`); the new tokens come last.
    `kv_positions` gives the position of each slot as the position encodings see it: padding is
    skipped, and every segment restarts at 0. `statistics` are those by which windows of a series
    were normalised, for a head to restore.
    """

    batch: int
    kv_positions: Int[Tensor, "#batch kv_seq"]
    q_slots: Int[Tensor, " seq"]
    kv_slots: Int[Tensor, " kv_seq"]
    mask: Mask
    valid: Bool[Tensor, "batch seq"] | None = None
    memory: Memory | None = None
    statistics: WindowStatistics | None = None

    @property
    def positions(self) -> Int[Tensor, "#batch seq"]:
        """The positions of the new tokens."""
        return self.kv_positions[:, self.kv_slots.shape[0] - self.q_slots.shape[0] :]

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
        if positions is None:
            positions = positions_of(kv_slots, valid, segments)
        return cls(
            batch=batch,
            kv_positions=positions,
            q_slots=kv_slots[past:],
            kv_slots=kv_slots,
            mask=mask.at(positions),
            valid=None if valid is None else valid[:, past:],
        )

    def restrict(self, pattern: Mask) -> "Context":
        """Combine the mask with `pattern` and evaluate it, once for all layers that share it.

        Only the slots within the pattern's reach of the new tokens stay, as in the cache.
        """
        mask = self.mask & pattern.at(self.kv_positions)
        past = self.kv_slots.shape[0] - self.q_slots.shape[0]
        first = first_in_reach(past, pattern.reach[0])
        return replace(
            self,
            mask=mask.on(self.q_slots, self.kv_slots[first:], self.batch),
            kv_slots=self.kv_slots[first:],
            kv_positions=self.kv_positions[:, first:],
        )

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


def positions_of(
    slots: Int[Tensor, " seq"],
    valid: Bool[Tensor, "batch seq"] | None = None,
    segments: Int[Tensor, "batch seq"] | None = None,
) -> Int[Tensor, "#batch seq"]:
    """The position of each slot in its text: from 0 in every segment, skipping padding."""
    if valid is None and segments is None:
        return slots[None]
    real = torch.ones_like(slots)[None] if valid is None else valid.long()
    count = real.cumsum(-1)
    if segments is not None:
        starts = torch.ones_like(segments, dtype=torch.bool)
        starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
        count = count - torch.where(starts, count - real, 0).cummax(-1).values
    return (count - 1).clamp(min=0)


def _same_shape(name: str, tensor: Tensor, shape: tuple[Length, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")
