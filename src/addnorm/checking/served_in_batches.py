"""Comparisons of serving in batches: rows join, repeat and leave, as in an engine."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from addnorm.checking.case import Case
from addnorm.checking.comparison import Comparison
from addnorm.checking.served import REPORTED
from addnorm.generate.next_token import Continuation, Translation
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.serve.engine.rows import Rows, why_alone
from addnorm.serve.engine.slots import RowBuffers

MOST_ROWS = 3
"""How many rows are open at once."""


def served_in_batches(case: Case, expected: Tensor, *, in_place: bool) -> Iterator[Comparison]:
    """Serve all texts, the first one twice, and compare the logits after every token.

    So recurrent mixers, custom caches, encoder–decoders and beam search are served. Translations
    begin with the same token, and are compared with the model on each text alone.
    """
    model = case.model
    if isinstance(model, EncoderDecoderModel):
        start = case.texts[0][0]
        case = case.reading([[start, *text[1:]] for text in case.texts])
        whole = [case.alone(i) for i in range(len(case.texts))]
        batches = Batches(case, Translation(model, start), in_place=in_place)
    else:
        assert isinstance(model, DecoderModel)
        whole = case.split(expected)
        batches = Batches(case, Continuation(model), in_place=in_place)
    rows = [(ours, whole[text][place]) for text, place, ours in batches.serve()]
    ours, defined = (torch.stack(side) for side in zip(*rows, strict=True))
    tolerance = REPORTED if expected.dtype == next(model.parameters()).dtype else None
    way = "in place" if in_place else "gathered"
    yield Comparison(f"served in batches, {way}", ours, defined, tolerance)


@dataclass
class Batch:
    """Rows that advance together; for each, its text and the index of the last token read."""

    rows: Rows
    places: list[tuple[int, int]]

    def keep(self, chosen: Sequence[int]) -> None:
        """Keep these rows, in this order; rows may repeat."""
        self.places = [self.places[i] for i in chosen]
        if chosen:
            self.rows.select(torch.tensor(chosen))

    def logits(self, rows: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """Yield the text, the token index and the logits of each row."""
        for (text, place), row in zip(self.places, rows, strict=True):
            yield text, place, row


class Batches:
    """The texts of a case in batches, which they join at any time if caches can be joined.

    Slots are few, so that those of texts that have left are used again.
    """

    def __init__(
        self, case: Case, next_token: Continuation | Translation, *, in_place: bool
    ) -> None:
        self._case = case
        self._joins = why_alone(next_token.model) is None
        longest = max(case.lengths) + max(map(len, case.sources), default=0)
        self._buffers = RowBuffers(next_token, MOST_ROWS * longest, in_place=in_place)
        self._batches: list[Batch] = []

    @property
    def _room(self) -> int:
        return MOST_ROWS - sum(len(batch.places) for batch in self._batches)

    def serve(self) -> Iterator[tuple[int, int, Tensor]]:
        """Yield the number of a text, the index of a token, and the logits after that token."""
        draw, waiting = self._case.draw, [*range(len(self._case.texts)), 0]
        while waiting or self._batches:
            if waiting and self._room and (not self._batches or draw.random() < 0.5):
                n = draw.randint(1, self._room) if self._joins else 1
                yield from self._start(waiting[:n])
                del waiting[:n]
            yield from self._advance_all()

    def _advance_all(self) -> Iterator[tuple[int, int, Tensor]]:
        """Advance every batch, and drop those without rows, which frees their slots."""
        for batch in self._batches:
            yield from self._advance(batch)
        self._batches = [batch for batch in self._batches if batch.places]

    def _start(self, texts: Sequence[int]) -> Iterator[tuple[int, int, Tensor]]:
        """Read the first tokens of texts, or the sources, and join the running batches."""
        case, rows = self._case, Rows(self._buffers)
        if isinstance(case.model, EncoderDecoderModel):
            batch = Batch(rows, [(text, 0) for text in texts])
            prompts = [case.sources[text] for text in texts]
        else:
            places = [case.draw.randrange((case.lengths[text] + 1) // 2) for text in texts]
            batch = Batch(rows, [*zip(texts, places, strict=True)])
            prompts = [case.texts[text][: place + 1] for text, place in batch.places]
        yield from batch.logits(rows.start(prompts))
        self._end(batch)
        if self._joins and self._batches and batch.places:
            [running] = self._batches
            running.rows.join(rows)
            running.places += batch.places
        else:
            self._batches.append(batch)

    def _advance(self, batch: Batch) -> Iterator[tuple[int, int, Tensor]]:
        """Append the next token of each text; end complete texts, and sometimes repeat a row."""
        if not batch.places:
            return
        texts, draw = self._case.texts, self._case.draw
        batch.places = [(text, place + 1) for text, place in batch.places]
        tokens = [texts[text][place] for text, place in batch.places]
        yield from batch.logits(batch.rows.step(torch.tensor(tokens)))
        self._end(batch)
        if batch.places and self._room and draw.random() < 0.5:
            n = len(batch.places)
            chosen = [*range(n), draw.randrange(n)]
            draw.shuffle(chosen)
            batch.keep(chosen)

    def _end(self, batch: Batch) -> None:
        """Drop the rows whose text has no further token."""
        lengths = self._case.lengths
        chosen = [i for i, (text, place) in enumerate(batch.places) if place + 1 < lengths[text]]
        if len(chosen) < len(batch.places):
            batch.keep(chosen)
