"""Long texts: comparisons of attention in tiles and blocks, with lowered size limits.

Tiles are used where a mask or bias would be too large, blocks where scores exceed the CPU cache.
With temporarily lowered limits, texts of some hundred tokens use all of these code paths.
"""

import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor

from addnorm.checking.cached import Reader
from addnorm.checking.case import VOCABULARY, Case, gradients
from addnorm.checking.comparison import Comparison
from addnorm.checking.matrix import Cell
from addnorm.checking.narrow_types import bfloat16
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.nn import masks
from addnorm.nn.attention import kernels, tiles
from addnorm.nn.choices import choices, use_choices

LENGTHS, SOURCE_LENGTHS = (133, 9), (31, 131)
"""Odd numbers past 64 and 128, where a table, a block or a rule of length may end."""

PAIRS, QUERIES, SCORES = 1024, 16, 128
"""The limit of pairs evaluated whole, the queries per tile, and the scores per block."""

STEPS = 3
"""How many of the last tokens are read one at a time."""


def reads_long_texts(cell: Cell) -> bool:
    """Return whether a cell is tested on long texts: every sixth, since they take long."""
    return zlib.crc32(cell.id.encode()) % 6 == 0


def long_texts(cell: Cell, *, defined: bool = True) -> Iterator[Comparison]:
    """Yield logits and gradients in tiles, with and without a cache, in three dtypes."""
    case = Case.of(cell, LENGTHS, SOURCE_LENGTHS, defined=defined)
    expected = case.expected()
    with small_limits():
        ours = case.run(case.side())
        yield Comparison("long texts", ours, expected)
        yield Comparison("gradient of long texts", *gradients(case.model, ours, expected))
        expected = expected.detach()
        with torch.no_grad():
            if isinstance(case.model, DecoderModel | EncoderDecoderModel):
                yield from _in_order(case, expected)
            narrow = replace(case, model=deepcopy(case.model).float())
            yield Comparison("float32 long texts", narrow.run("right"), expected)
            for comparison in bfloat16(narrow, expected):
                yield comparison._replace(name=f"long texts, {comparison.name}")


def _in_order(case: Case, expected: Tensor) -> Iterator[Comparison]:
    """Compare causality at each doubling of the length, and reading with a cache."""
    text, ours = case.texts[0], case.split(expected)[0]
    for t in (2**n for n in range(5, len(text).bit_length() - 1)):
        other = case.reading([[*text[:t], *((token + 1) % VOCABULARY for token in text[t:])]])
        yield Comparison(f"causality of long texts, from {t} on", other.alone(0)[:t], ours[:t])
    if case.may_cache():
        reader = Reader.of(case)
        assert reader.valid is not None
        n = len(text) - STEPS
        cuts = [0, n // 2, n, *range(n + 1, len(text) + 1)]
        logits = torch.cat([reader.read(slice(a, b)) for a, b in pairwise(cuts)], dim=1)
        yield Comparison("long texts, cached", logits[reader.valid], expected)


@contextmanager
def small_limits() -> Generator[None]:
    """Temporarily lower the limits, so that texts of a few hundred tokens exceed them."""
    limits = masks.DENSE_LIMIT, masks.TILE, kernels.AT_ONCE
    _set(PAIRS, QUERIES, SCORES)
    try:
        with use_choices(replace(choices(), many_scores=SCORES)):
            yield
    finally:
        _set(*limits)


def _set(pairs: int, queries: int, at_once: int) -> None:
    masks.DENSE_LIMIT, masks.TILE = pairs, queries  # pyright: ignore[reportConstantRedefinition]
    tiles.DENSE_LIMIT, tiles.TILE = pairs, queries  # pyright: ignore[reportConstantRedefinition]
    kernels.AT_ONCE = at_once
