"""Filling gaps in texts with a denoiser: T5 says what stood in each, BART the whole text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

import torch

from addnorm.data.batches.buckets import DenoisingConfig
from addnorm.data.batches.denoising import SpanCorruptionConfig
from addnorm.data.ids.framing import around
from addnorm.data.tokenizing.special_tokens import MASKS, mask_id_of, sentinel_ids_of
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, TextError
from addnorm.generate import DecodingConfig, Generated, TextDecoder, translate
from addnorm.generate.next_token import positions_for
from addnorm.models import EncoderDecoderModel
from addnorm.runs.inference.decoding import later
from addnorm.runs.inference.results import Candidate, Filled
from addnorm.runs.trained_model import TrainedModel

GAP = re.compile("|".join([*map(re.escape, MASKS), r"<extra_id_\d+>"]))
"""What marks a gap: a mask of any name, or a sentinel of T5; the first gap is always sentinel 0."""

BLANK = Generated("", 0.0, "eos")
"""What is written of a blank text."""


@dataclass(frozen=True)
class Gapped:
    """A text in ids, cut at its gaps, and the special tokens that an encoder reads there.

    `sentinels` has one more than there are gaps, which ends what the decoder says; without any, the
    decoder says the whole text.
    """

    parts: list[list[int]]
    read: list[int]
    sentinels: tuple[int, ...] = ()

    def spans(self, said: Sequence[int]) -> list[list[int]]:
        """What a decoder said of each gap: nothing where it left one out."""
        found: list[list[int]] = [[] for _ in self.parts[1:]]
        place = -1
        for i in said:
            if i in self.sentinels:
                place = self.sentinels.index(i)
            elif 0 <= place < len(found):
                found[place].append(i)
        return found

    def filled(self, said: Sequence[int]) -> list[int]:
        """The ids of the text with its gaps filled."""
        spans = [*self.spans(said), list[int]()]
        return [i for part, span in zip(self.parts, spans, strict=True) for i in (*part, *span)]


def says_spans(run: TrainedModel) -> bool:
    """Whether the decoder says the spans alone (T5), and not the whole text (BART)."""
    batching = run.recipe.train.batching
    return isinstance(batching, DenoisingConfig) and isinstance(
        batching.noise, SpanCorruptionConfig
    )


def gapped(run: TrainedModel, text: str, number: int) -> Gapped:
    """A text with its gaps, as the encoder reads it.

    Raises `TextError` for one without a gap where spans alone are said, or with too many.
    """
    tokenizer = run.tokenizers.source
    before, after = around("translation", tokenizer)
    pieces = GAP.split(text)
    n_gaps = len(pieces) - 1
    parts = [
        tokenizer.encode(before_gap(tokenizer, part) if n < n_gaps else part)
        for n, part in enumerate(pieces)
    ]
    sentinels: tuple[int, ...] = ()
    marks = [mask_id_of(tokenizer)] * n_gaps if not says_spans(run) else []
    if says_spans(run):
        known = sentinel_ids_of(tokenizer)
        if not 0 < n_gaps < len(known):
            raise TextError(
                f"text {number}: {n_gaps} gaps: mark 1 to {len(known) - 1} of them by {MASKS[0]}"
            )
        sentinels, marks = known[: n_gaps + 1], [*known[:n_gaps]]
    read = [
        *parts[0],
        *(i for mark, part in zip(marks, parts[1:], strict=True) for i in (mark, *part)),
    ]
    return Gapped(parts, [*before, *read, *after], sentinels)


def before_gap(tokenizer: Tokenizer, part: str) -> str:
    """A part of a text before a gap, which has the space before it where words have."""
    spaced = tokenizer.encode_batch([" a", "a"])
    joins = len(spaced[0]) == len(spaced[1]) and spaced[0] != spaced[1]
    return part.removesuffix(" ") if joins else part


def restored(
    run: TrainedModel,
    texts: Sequence[str],
    decoding: DecodingConfig,
    max_new_tokens: int | None = None,
    *,
    plain: bool = True,
    first: int = 0,
) -> list[list[Generated]]:
    """Each text with its gaps filled, in the ways that are best; an empty text stays empty.

    A string in `stop` and a compiled graph, not `plain`, are refused.
    """
    if not plain:
        raise InputError(f"{run.name}: a text with gaps takes no stop and no compiled graph")
    gaps = [
        gapped(run, text, n) if text.strip() else None for n, text in enumerate(texts, first + 1)
    ]
    some = [one for one in gaps if one is not None]
    found = iter(_said(run, some, decoding, max_new_tokens, first))
    return [
        [_written(run, one, best) for best in ([BLANK] if one is None else next(found))]
        for one in gaps
    ]


def _said(
    run: TrainedModel,
    gaps: Sequence[Gapped],
    decoding: DecodingConfig,
    most: int | None,
    first: int,
) -> list[list[Generated]]:
    model, target = run.model, run.tokenizers.target
    assert isinstance(model, EncoderDecoderModel)
    for number, one in enumerate(gaps, first + 1):
        positions_for(model.source_embed, number, one.read)
    return translate(
        model,
        [one.read for one in gaps],
        later(decoding, first),
        max_new_tokens=most,
        bos_id=target.bos_id,
        eos_id=target.eos_ids,
        text_decoder=TextDecoder(target),
    )


def _written(run: TrainedModel, gaps: Gapped | None, said: Generated) -> Generated:
    spans = gaps is not None and gaps.sentinels
    text = run.tokenizers.source.decode(gaps.filled(said.ids)) if gaps and spans else said.text
    return replace(said, text=text)


def fill_gaps(
    run: TrainedModel, texts: Sequence[str], decoding: DecodingConfig, first: int = 0
) -> list[Filled]:
    """Each text with its gaps filled, and what stands in each with its probability.

    A decoder that says the whole text tells of no gap by itself.
    """
    gaps = [gapped(run, text, n) for n, text in enumerate(texts, first + 1)]
    if empty := next((n for n, one in enumerate(gaps, first + 1) if len(one.parts) == 1), None):
        raise TextError(f"text {empty}: no {MASKS[0]} to fill")
    found = _said(run, gaps, decoding, None, first)
    return [
        Filled(_written(run, one, best).text, _candidates(run, one, best) if one.sentinels else [])
        for one, (best, *_) in zip(gaps, found, strict=True)
    ]


@torch.inference_mode()
def _candidates(run: TrainedModel, gaps: Gapped, said: Generated) -> list[tuple[Candidate, ...]]:
    """The span of each gap, with the product of the probabilities of its tokens and of its end.

    None for a gap that the decoder left out. What ends a span is the next sentinel, or the end of
    all; where the decoder was stopped before, the last span has no end.
    """
    tokenizer = run.tokenizers.target
    ended = said.finished == "eos"
    read = [tokenizer.bos_id, *(said.ids if ended else said.ids[:-1])]
    source, target = (torch.tensor([some], device=run.device) for some in (gaps.read, read))
    logits = run.model(source=source, target=target)[0].float().log_softmax(-1)
    sure = [row[i].item() for row, i in zip(logits, said.ids, strict=False)]
    scores, place = dict[int, float](), -1
    for i, score in zip(said.ids, sure, strict=True):
        if place in scores:
            scores[place] += score
        if i in gaps.sentinels:
            place = gaps.sentinels.index(i)
            scores.setdefault(place, 0.0)
    if ended and place in scores:
        scores[place] += logits[-1, list(tokenizer.eos_ids)].logsumexp(-1).item()
    texts = [tokenizer.decode(span) for span in gaps.spans(said.ids)]
    return [
        (Candidate(text, exp(scores[place])),) if place in scores else ()
        for place, text in enumerate(texts)
    ]
