"""Context: what every layer of one forward pass is told, passed down and never changed."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from addnorm.nn.cache import Length, first_in_reach
from addnorm.nn.masks import Evaluated, Full, Mask, Padding, Segments


@dataclass(frozen=True)
class Memory:
    """An encoder's output, and which of it may be looked at.

    Where every layer has its keys and values, `hidden` stands for its own shape and may have no
    features.
    """

    hidden: Float[Tensor, "memories memory_seq width"]
    mask: Evaluated


@dataclass(frozen=True, kw_only=True)
class Context:
    """Positions, mask and memory of one forward pass over `seq` new tokens of `kv_seq` in all.

    Slots are plain indices into the sequence as stored (see `masks`); the new tokens are its last.
    `kv_positions` is what a position scheme sees, slot by slot: the place in the text, where
    padding is skipped and every segment begins anew.
    """

    batch: int
    kv_positions: Int[Tensor, "#batch kv_seq"]
    q_slots: Int[Tensor, " seq"]
    kv_slots: Int[Tensor, " kv_seq"]
    mask: Mask
    valid: Bool[Tensor, "batch seq"] | None = None
    memory: Memory | None = None

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
        """The context of `tokens` after `past` cached ones.

        `valid` marks the real tokens among all slots, the cached ones included. `positions` are
        those of all slots, by default counted from the start of each text. Nothing here depends on
        what a length is, so a tracer may keep lengths open. Raises `ValueError` where the shapes do
        not agree.
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
        """This context with its mask narrowed by `pattern` and evaluated, once for many layers.

        Of the slots, those stay that the pattern can reach from the new ones, as a cache keeps.
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
        """This context with an encoder's output for cross-attention to look at.

        Several rows may share one: of `n` memories, each serves the next `batch / n` rows. Raises
        `ValueError` where the shapes do not agree.
        """
        n = memory.shape[0]
        sharing = 1 if self.batch == n else self.batch // max(n, 1)  # no rows share no memory, too
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
    """The place of each slot in its own text: counted from 0, padding skipped, per segment."""
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
