"""A decoder that computes the steps of a schedule: pages for attention, or a state a sequence."""

from collections.abc import Sequence as Items

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from addnorm.generate.next_token import check_writes, device_of, evaluating
from addnorm.models import DecoderModel
from addnorm.models.step import EVERY, LAST, DecoderState, decoder_step
from addnorm.nn.cache import KVCache
from addnorm.nn.paged_cache import GatheredCache, PagedBuffer, Slots
from addnorm.serve.engine.pages import Copy, PagePool
from addnorm.serve.engine.schedule import Step
from addnorm.serve.engine.sequence import Sequence

Part = tuple[Sequence, int]
"""A sequence and how many of its tokens are read."""


class PagedDecoder:
    """Next-token logits of the sequences of a step, with their keys and values in pages.

    The texts of a step are padded on the left, as batches of prompts are.
    """

    def __init__(self, model: DecoderModel, pool: PagePool) -> None:
        check_writes(model)
        self.model = model
        self.pool = pool
        n_slots = pool.n_pages * pool.page_size
        self._buffers = [PagedBuffer(n_slots) for _ in model.stack.blocks]
        self._padding = n_slots
        self._device = device_of(model)

    @torch.inference_mode()
    def compute(self, step: Step, *, every: bool = False) -> Float[Tensor, "rows vocab"]:
        """The logits after the last token read of each sequence: of `decode`, then of `chunk`.

        With `every`, those after every token of the chunk, in their order. A row may hold NaN.
        """
        self._copy(step.copies)
        groups = [[(sequence, 1) for sequence in step.decode]]
        if step.chunk is not None:
            groups.append([step.chunk])
        positions = EVERY if every else LAST
        return torch.cat([self._logits(parts, positions) for parts in groups if parts])

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
            buffer.copy(source, target)

    def _logits(self, parts: Items[Part], positions: slice) -> Float[Tensor, "rows vocab"]:
        slots, valid = self._slots(parts)
        new = slots.written.shape[1]
        tokens = torch.tensor([s.tokens[s.computed : s.computed + new] for s, _ in parts])
        layers = [GatheredCache(buffer, slots) for buffer in self._buffers]
        cache = KVCache(layers, length=slots.past.shape[1])
        with evaluating(self.model):
            state = DecoderState(cache=cache, valid=valid)
            logits, _ = decoder_step(self.model, tokens.to(self._device), state, positions)
        return logits.flatten(0, 1).float()

    def _slots(self, parts: Items[Part]) -> tuple[Slots, Bool[Tensor, "rows so_far"] | None]:
        """The slots of the texts, and which of them are real; None if all are.

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
        whole = bool(valid.all())
        return (
            Slots(slots[:, :width], slots[:, width:]),
            None if whole else valid.to(self._device),
        )
