"""A decoder that computes the steps of a schedule: pages for attention, or a state a sequence."""

from collections.abc import Sequence as Items
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from addnorm.generate.next_token import check_writes, device_of, evaluating
from addnorm.models import DecoderModel
from addnorm.models.step import EVERY, LAST
from addnorm.nn.paged_cache import TextSlots
from addnorm.serve.engine.paged_step import PagedStep, compiled_step, new_buffers
from addnorm.serve.engine.pages import Copy, PagePool
from addnorm.serve.engine.schedule import Step
from addnorm.serve.engine.sequence import Sequence

Part = tuple[Sequence, int]
"""A sequence and how many of its tokens are read."""

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
        """The logits after the last token read of each sequence: of `decode`, then of `chunk`.

        With `every`, those after every token of the chunk, in their order. A row may hold NaN.
        """
        self._copy(step.copies)
        with evaluating(self.model):
            logits = [self._decoded(step.decode)] if step.decode else []
            if step.chunk is not None:
                logits.append(self._of_chunk(step.chunk, EVERY if every else LAST))
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _decoded(self, sequences: Items[Sequence]) -> Float[Tensor, "rows vocab"]:
        """The logits after one more token of each sequence."""
        tokens = [[sequence.tokens[sequence.computed]] for sequence in sequences]
        slots, valid = self._slots([(sequence, 1) for sequence in sequences])
        inputs = torch.tensor(tokens, device=self._device), slots, valid
        return self._decode(*inputs, self._buffers).float()

    def _of_chunk(self, part: Part, positions: slice) -> Float[Tensor, "chosen vocab"]:
        """The logits at some of the tokens of a chunk."""
        sequence, n = part
        tokens = sequence.tokens[sequence.computed : sequence.computed + n]
        slots, valid = self._slots([part])
        inputs = torch.tensor([tokens], device=self._device), slots, valid
        return self._step(*inputs, self._buffers, positions).float()

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

    def _slots(self, parts: Items[Part]) -> tuple[TextSlots, Bool[Tensor, "rows so_far"]]:
        """The slots of the texts, and which of them are real.

        All parts read the same number of tokens. Tokens whose pages were given back are out of
        reach of every layer, and have the slot of padding.
        """
        size, new = self.pool.page_size, parts[0][1]
        computed = torch.tensor([s.computed for s, _ in parts])[:, None]
        width = int(computed.max())
        used = [s.table.pages[: -(-(s.computed + new) // size)] for s, _ in parts]
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
