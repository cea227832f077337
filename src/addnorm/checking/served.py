"""Comparisons of serving: texts in pages, read in chunks, decoded together and preempted."""

from collections.abc import Iterator

import torch
from torch import Tensor

from addnorm.checking.case import Case
from addnorm.checking.comparison import Comparison
from addnorm.models import DecoderModel
from addnorm.serve.engine.decoder import Kernels, PagedDecoder
from addnorm.serve.engine.paged import reach_of, why_not_paged
from addnorm.serve.engine.pages import PagePool
from addnorm.serve.engine.schedule import Limits, Schedule, Step
from addnorm.serve.engine.sequence import Request, Sequence

REPORTED = 1e-6
"""The tolerance of float64, whose logits a server reports in float32."""


def served(case: Case, expected: Tensor, kernels: Kernels) -> Iterator[Comparison]:
    """Serve all texts at once, the first one twice, and compare the logits after every token.

    The pages hold a little more than the longest text, so that sequences wait or are set aside.
    Models whose keys and values are not kept in pages have no comparison.
    """
    model = case.model
    if not isinstance(model, DecoderModel) or why_not_paged(model) is not None:
        return
    tolerance = REPORTED if expected.dtype == next(model.parameters()).dtype else None
    ours, defined = list[Tensor](), list[Tensor]()
    for text, position, logits in _logits(case, model, kernels):
        ours.append(logits)
        defined.append(case.split(expected)[text][position])
    yield Comparison(f"served, {kernels}", torch.stack(ours), torch.stack(defined), tolerance)


def _logits(case: Case, model: DecoderModel, kernels: Kernels) -> Iterator[tuple[int, int, Tensor]]:
    """Yield the number of a text, the index of a token in it, and the logits after that token."""
    size = case.draw.choice((1, 2, 3))
    pool = PagePool(-(-max(case.lengths) // size) + 2, size)
    limits = Limits(chunk=case.draw.choice((2, 3, 8)), reach=reach_of(model))
    schedule, decoder = Schedule(pool, limits), PagedDecoder(model, pool, kernels)
    for i in (*range(len(case.texts)), 0):
        text = case.texts[i]
        begun = case.draw.randrange(1, len(text))
        schedule.add(Request(name=str(i), prompt=tuple(text[:begun]), limit=len(text) - begun + 1))
    while schedule.running or schedule.n_waiting:
        step = schedule.next_step()
        places = _places(step)
        logits = decoder.compute(step, every=True)
        schedule.finish(step)
        for (sequence, position), row in zip(places, logits, strict=True):
            yield int(sequence.request.name), position, row
        for sequence in {sequence for sequence, _ in places}:
            _continue(schedule, sequence, case.texts[int(sequence.request.name)])


def _places(step: Step) -> list[tuple[Sequence, int]]:
    """The sequence and token index for each row of a step's logits."""
    chunk, n = step.chunk or (None, 0)
    places = [(sequence, sequence.computed) for sequence in step.decode]
    return places + [(chunk, chunk.computed + i) for i in range(n) if chunk is not None]


def _continue(schedule: Schedule, sequence: Sequence, text: list[int]) -> None:
    """Append the text's next token to a fully computed sequence, or end the sequence."""
    if sequence.missing:
        return
    if len(sequence.tokens) == len(text):
        schedule.end(sequence, "length")
    else:
        sequence.tokens.append(text[len(sequence.tokens)])
