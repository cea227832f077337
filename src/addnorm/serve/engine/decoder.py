"""A decoder that computes the steps of a schedule: pages for attention, or a state a sequence."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from addnorm.generate.next_token import check_writes, device_of, evaluating
from addnorm.models import DecoderModel
from addnorm.models.step import EVERY, LAST
from addnorm.nn.paged_cache import TextSlots
from addnorm.serve.engine.paged_step import PagedStep, compiled_step, new_buffers
from addnorm.serve.engine.pages import Copy, PagePool
from addnorm.serve.engine.schedule import Step
from addnorm.serve.engine.sequence import Sequence


@dataclass(frozen=True)
class Part:
    """Tokens of a sequence that are read together: those after the `first` ones."""

    sequence: Sequence
    first: int
    tokens: Items[int]


Kernels = Literal["gathered", "in_place", "compiled"]
"""How one new token of each text is computed."""


class PagedDecoder:
    """Next-token logits of the sequences of a step, with their keys and values in pages.

    The texts of a step are padded on the left, as batches of prompts are. `kernels` says how one
    new token of each text attends: to keys gathered from their slots, to those in place where the
    kernel of `nn.attention.paged_attention` can, or so in a compiled graph of the whole step.
    Raises `InputError` for "compiled" as `CompiledContinuation` does.
    """

    def __init__(self, model: DecoderModel, pool: PagePool, kernels: Kernels = "in_place") -> None:
        check_writes(model)
        self.model = model
        self.pool = pool
        self._padding = pool.n_pages * pool.page_size
        self._device = device_of(model)
        self._buffers = new_buffers(model, self._padding + 1)
        self._step = PagedStep(model, self._buffers, in_place=kernels != "gathered")
        is_compiled = kernels == "compiled"
        self._decode = compiled_step(self._step, self._buffers) if is_compiled else self._step

    @torch.inference_mode()
    def compute(self, step: Step, *, every: bool = False) -> Float[Tensor, "rows vocab"]:
        """The logits after each token that `decode` reads, then after the last one of `chunk`.

        With `every`, those after every token of the chunk, in their order. A row may hold NaN.
        """
        self._copy(step.copies)
        with evaluating(self.model):
            logits = [self._decoded(step.decode)] if step.decode else []
            if step.chunk is not None:
                logits.append(self._of_chunk(*step.chunk, EVERY if every else LAST))
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _decoded(self, sequences: Items[Sequence]) -> Float[Tensor, "rows vocab"]:
        """The logits after the newest token of each sequence, and after those of its draft.

        Each token is a row. The keys of all rows are written before any row attends, so that a
        token of a draft attends to those before it.
        """
        parts = [
            Part(sequence, sequence.computed + i, [token])
            for sequence in sequences
            for i, token in enumerate((sequence.tokens[sequence.computed], *sequence.draft))
        ]
        return self._decode(*self._inputs(parts), self._buffers).float()

    def _of_chunk(
        self, sequence: Sequence, n: int, positions: slice
    ) -> Float[Tensor, "chosen vocab"]:
        """The logits at some of the next `n` tokens of a sequence."""
        first = sequence.computed
        part = Part(sequence, first, sequence.tokens[first : first + n])
        return self._step(*self._inputs([part]), self._buffers, positions).float()

    def _copy(self, copies: Items[Copy]) -> None:
        if not copies:
            return
        size = self.pool.page_size
        pairs = [
            (copy.source * size + i, copy.target * size + i)
            for copy in copies
            for i in range(copy.n_tokens)
        ]
        source, target = torch.tensor(pairs, device=self._device).unbind(1)
        for buffer in self._buffers:
            buffer[target] = buffer[source]

    def _inputs(
        self, parts: Items[Part]
    ) -> tuple[Int[Tensor, "rows new"], TextSlots, Bool[Tensor, "rows so_far"]]:
        """The tokens, the slots of the texts up to them, and which of the slots are real."""
        tokens = torch.tensor([part.tokens for part in parts], device=self._device)
        return tokens, *self._slots(parts)

    def _slots(self, parts: Items[Part]) -> tuple[TextSlots, Bool[Tensor, "rows so_far"]]:
        """The slots of the texts, and which of them are real.

        All parts read the same number of tokens. Tokens whose pages were given back are out of
        reach of every layer, and have the slot of padding.
        """
        size, new = self.pool.page_size, len(parts[0].tokens)
        computed = torch.tensor([part.first for part in parts])[:, None]
        width = int(computed.max())
        used = [part.sequence.table.pages[: -(-(part.first + new) // size)] for part in parts]
        most = max(map(len, used))
        unused = self.pool.n_pages
        pages = torch.tensor(
            [
                [unused if page is None else page for page in row] + [unused] * (most - len(row))
                for row in used
            ]
        )
        number = torch.arange(width + new) - (width - computed)
        valid = number >= 0
        number = number.clamp(min=0)
        slots = pages.gather(1, number // size) * size + number % size
        slots = torch.where(valid, slots, self._padding).clamp(max=self._padding).to(self._device)
        return slots, valid.to(self._device)
