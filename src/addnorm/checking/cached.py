"""Comparisons with a cache: texts in chunks, while rows are dropped, repeated and reordered."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from addnorm.checking.case import VOCABULARY, Case, padded, pieces, row
from addnorm.checking.comparison import Comparison
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.nn.cache import KVCache

SEGMENT = 3


@dataclass
class Reader:
    """A model that processes a batch chunk by chunk, with its cache."""

    model: DecoderModel | EncoderDecoderModel
    tokens: Tensor
    valid: Tensor | None
    cache: KVCache
    memory: Tensor | None = None
    memory_valid: Tensor | None = None

    @classmethod
    def of(cls, case: Case) -> "Reader":
        """Return a reader of all texts of a case, padded on one side."""
        side = case.side()
        tokens, valid = padded(case.texts, side, case.draw)
        model = case.model
        assert isinstance(model, DecoderModel | EncoderDecoderModel)
        reader = cls(model, tokens, valid, model.new_cache())
        if isinstance(model, EncoderDecoderModel):
            source, reader.memory_valid = padded(case.sources, side, case.draw)
            reader.memory = model.encode(source, reader.memory_valid)
        return reader

    def read(self, part: slice) -> Tensor:
        """Return the logits of the next chunk."""
        valid = None if self.valid is None else self.valid[:, : part.stop]
        tokens = self.tokens[:, part]
        if isinstance(self.model, DecoderModel):
            return self.model(tokens, valid, cache=self.cache)
        assert self.memory is not None
        return self.model.decode(tokens, self.memory, self.memory_valid, valid, self.cache)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, each with its own memory."""
        self.cache.select(rows)
        self._keep(rows, rows)

    def select_beams(self, rows: Tensor, memories: Tensor) -> None:
        """Keep these rows and memories; each memory serves equally many consecutive rows."""
        self.cache.select(rows, memories)
        self._keep(rows, memories)

    def _keep(self, rows: Tensor, memories: Tensor) -> None:
        self.tokens = self.tokens[rows]
        self.valid = None if self.valid is None else self.valid[rows]
        if self.memory is not None and self.memory_valid is not None:
            self.memory, self.memory_valid = self.memory[memories], self.memory_valid[memories]


def cached(case: Case, expected: Tensor) -> Iterator[Comparison]:
    """Process the batch in random chunks, also with row selection between chunks."""
    reader = Reader.of(case)
    assert reader.valid is not None
    chunks = [reader.read(part) for part in pieces(reader.tokens.shape[1], case.draw)]
    yield Comparison("cached", torch.cat(chunks, dim=1)[reader.valid], expected)
    yield from selected(case, expected)


def selected(case: Case, expected: Tensor) -> Iterator[Comparison]:
    """Drop, repeat and reorder rows between chunks, as beam search does."""
    reader, n = Reader.of(case), len(case.texts)
    assert reader.valid is not None
    whole = expected.new_zeros(*reader.valid.shape, expected.shape[-1])
    whole[reader.valid] = expected
    size, places = reader.tokens.shape[1], list(range(n))
    longest = max(places, key=lambda i: len(case.texts[i]))  # has tokens in every piece
    cuts = sorted(case.draw.sample(range(1, size), 2))
    for name, part in zip(
        ("", "selected", "beams"), [slice(a, b) for a, b in pairwise([0, *cuts, size])], strict=True
    ):
        if name == "selected":  # more rows than before, in another order
            other = case.draw.choice([i for i in places if i != longest])
            rows = [other, *(case.draw.randrange(n) for _ in range(n)), longest]
            reader.select(torch.tensor(rows))
        elif name == "beams":  # two texts, twice each: copies share a memory
            first = places.index(longest)
            others = [i for i, text in enumerate(places) if text != longest]
            texts = [case.draw.choice(others), first]
            rows = [text for text in texts for _ in range(2)]
            reader.select_beams(torch.tensor(rows), torch.tensor(texts))
        else:
            rows = places
        places = [places[i] for i in rows]
        ours, valid = reader.read(part), reader.valid[:, part]
        if name:
            yield Comparison(f"cache.select ({name})", ours[valid], whole[places][:, part][valid])


def selected_memory(case: Case, model: DecoderModel) -> Iterator[Comparison]:
    """Test row selection between segments with a segment memory as long as the text."""
    texts = [case.texts[0], [(token + 1) % 11 for token in case.texts[0]]]
    whole = torch.cat([model(row(text)) for text in texts])
    size = len(texts[0])
    reader = Reader(model, torch.tensor(texts), None, model.new_memory(size))
    places = [0, 1]
    for rows, first in (([0, 1], 0), ([1, 1, 0], SEGMENT), ([2, 0], SEGMENT + 2)):
        part = slice(first, {0: SEGMENT, SEGMENT: SEGMENT + 2}.get(first, size))
        if first:
            reader.select(torch.tensor(rows))
        places = [places[i] for i in rows]
        yield Comparison("memory, rows selected", reader.read(part), whole[places][:, part])


def causality(case: Case, run: Callable[[Tensor, Tensor], Tensor]) -> Comparison:
    """Compare outputs before position `t` for texts that differ from `t` on: they must be equal.

    `run` takes tokens and their padding mask, and returns logits.
    """
    tokens, valid = padded(case.texts, "right", case.draw)
    t = case.draw.randrange(1, max(case.lengths))
    changed = tokens.clone()
    changed[:, t] = (tokens[:, t] + case.draw.randrange(1, VOCABULARY)) % VOCABULARY
    ours, expected = (run(x, valid)[:, :t][valid[:, :t]] for x in (changed, tokens))
    return Comparison("causality", ours, expected)
