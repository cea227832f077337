"""Computes the steps of a schedule with a decoder whose keys and values are in pages."""

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from addnorm.generate.next_token import check_writes, device_of, evaluating, maximum_length
from addnorm.models import DecoderModel
from addnorm.models.step import EVERY, LAST
from addnorm.nn.paged_cache import TextSlots
from addnorm.serve.engine.cuda_graphs import GraphedStep
from addnorm.serve.engine.exact import COMPARED, Tiles, agreeing, one_by_one, why_one_by_one
from addnorm.serve.engine.paged_step import PagedStep, compiled_step, new_buffers
from addnorm.serve.engine.pages import Copy, PagePool, PageTable
from addnorm.serve.engine.schedule import Step
from addnorm.serve.engine.sequence import Request, Sequence

NONE = slice(0, 0)
"""No position: the keys and values of a token are kept, and its logits not computed."""


@dataclass(frozen=True)
class Part:
    """Tokens of a sequence that are read together, following its `first` tokens."""

    sequence: Sequence
    first: int
    tokens: Items[int]


def rows_of(sequence: Sequence, tokens: Items[int]) -> list[Part]:
    """The next tokens of a sequence, each as a part of its own."""
    return [Part(sequence, sequence.computed + i, [token]) for i, token in enumerate(tokens)]


Kernels = Literal["gathered", "in_place", "compiled"]
"""How one new token of each text is computed."""


class PagedDecoder:
    """Computes the next-token logits of a step's sequences, with keys and values in pages.

    The texts of a step are padded on the left, as batches of prompts are. `kernels` says how one
    new token of each text attends: to keys gathered from their slots, to those in place where the
    operator `cached_attention` can, or so in a compiled graph of the whole step, which on a GPU is
    a CUDA graph.
    With `exact`, the logits after a token have the same bits whatever else is in the steps (see
    `exact`). Raises `InputError` for "compiled" as `CompiledContinuation` and `GraphedStep` do.
    """

    def __init__(
        self,
        model: DecoderModel,
        pool: PagePool,
        kernels: Kernels = "in_place",
        *,
        exact: bool = False,
    ) -> None:
        check_writes(model)
        self.model = model
        self.pool = pool
        self._padding = pool.n_pages * pool.page_size
        self._device = device_of(model)
        self._buffers = new_buffers(model, self._padding + 1)
        self._step = PagedStep(model, self._buffers, in_place=kernels != "gathered")
        is_compiled = kernels == "compiled"
        graphed = GraphedStep if self._device.type == "cuda" else compiled_step
        self._decode = graphed(self._step, self._buffers) if is_compiled else self._step
        self.tiles = self._exact_tiles(in_graph=is_compiled) if exact else None

    @torch.inference_mode()
    def compute(self, step: Step, *, every: bool = False) -> Float[Tensor, "rows vocab"]:
        """The logits after each token in `decode`, then after the last token of `chunk`.

        With `every`, those after every token of the chunk, in their order. A row may hold NaN.

        Each token of `decode` is a row: the newest of each sequence, and those of its draft. The
        keys of all rows are written before any row attends, so that a token of a draft attends to
        those before it.
        """
        self._copy(step.copies)
        newest = [
            row
            for sequence in step.decode
            for row in rows_of(sequence, (sequence.tokens[sequence.computed], *sequence.draft))
        ]
        chunk = None if step.chunk is None else _chunk(*step.chunk)
        with evaluating(self.model):
            if self.tiles is not None:
                read = [] if chunk is None else rows_of(chunk.sequence, chunk.tokens)
                first = 0 if every else max(len(read) - 1, 0)
                return self._in_tiles(self.tiles, read[:first], [*newest, *read[first:]])
            logits = [self._of_rows(newest, len(newest))] if newest else []
            if chunk is not None:
                logits.append(self._of_chunk(chunk, EVERY if every else LAST))
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _in_tiles(
        self, tiles: Tiles, unasked: Items[Part], asked: Items[Part]
    ) -> Float[Tensor, "asked vocab"]:
        """The logits after the `asked` rows; the `unasked` rows before them are read too."""
        rows, logits, first = [*unasked, *asked], list[Tensor](), 0
        for n, size in tiles.split(len(rows)):
            positions = NONE if first + n <= len(unasked) else LAST
            computed = self._of_rows(rows[first : first + n], size, positions)
            logits.append(computed[max(len(unasked) - first, 0) :])
            first += n
        return logits[0] if len(logits) == 1 else torch.cat(logits)

    def _of_rows(
        self, rows: Items[Part], size: int, positions: slice = LAST
    ) -> Float[Tensor, "rows vocab"]:
        """The logits after each row's token, computed in a tile of `size` rows."""
        tokens, slots, valid = self._inputs(rows)
        if more := size - len(rows):
            tokens, valid = F.pad(tokens, (0, 0, 0, more)), F.pad(valid, (0, 0, 0, more))
            slots = F.pad(slots, (0, 0, 0, more), value=self._padding)
        return self._decode(tokens, slots, valid, self._buffers, positions)[: len(rows)].float()

    def _of_chunk(self, chunk: Part, positions: slice) -> Float[Tensor, "chosen vocab"]:
        """The logits at some tokens of a chunk."""
        return self._step(*self._inputs([chunk]), self._buffers, positions).float()

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
        """The tokens, the slots of their texts so far, and which slots are real."""
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

    @torch.inference_mode()
    def _exact_tiles(self, *, in_graph: bool) -> Tiles:
        """The tile sizes that give equal results on a text of random tokens."""
        if why := why_one_by_one(self._step, in_graph=in_graph):
            return one_by_one(why)
        n = min(COMPARED, self._padding, maximum_length(self.model.embed))
        vocab = self.model.embed.tokens.num_embeddings
        prompt = torch.randint(vocab, (n,), generator=torch.Generator().manual_seed(0)).tolist()
        request = Request(name="compared", prompt=tuple(prompt), limit=0)
        text = Sequence(request, 0, PageTable(self.pool), prompt)
        text.table.append(n)
        rows = rows_of(text, prompt)
        with evaluating(self.model):
            tiles = agreeing(lambda places, size: self._of_rows([rows[i] for i in places], size), n)
        text.table.clear()
        return tiles


def _chunk(sequence: Sequence, n: int) -> Part:
    """The next `n` tokens of a sequence."""
    first = sequence.computed
    return Part(sequence, first, sequence.tokens[first : first + n])
