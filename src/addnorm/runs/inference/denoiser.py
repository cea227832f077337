"""Filling gaps in texts with a denoiser: T5 predicts the span of each, BART the whole text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

import torch

from addnorm.data.batches.buckets import DenoisingConfig
from addnorm.data.batches.denoising import SpanCorruptionConfig
from addnorm.data.ids.framing import around
from addnorm.data.tokenizing.sides import MASKS, mask_id_of, sentinel_ids_of
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, TextError
from addnorm.generate import DecodingConfig, Generated, TextDecoder, translate
from addnorm.generate.next_token import positions_for
from addnorm.models import EncoderDecoderModel
from addnorm.runs.inference.decoding import later
from addnorm.runs.inference.results import Candidate, Filled
from addnorm.runs.trained_model import TrainedModel

GAP = re.compile("|".join([*map(re.escape, MASKS), r"<extra_id_\d+>"]))
"""The mark of a gap: a mask of any name, or a sentinel of T5; the first gap is always sentinel 0.
"""

BLANK = Generated("", 0.0, "eos")
"""The result for a blank text."""


@dataclass(frozen=True)
class Gapped:
    """The ids of a text split at its gaps, and the ids that the encoder reads instead.

    `sentinels` has one for each gap, and one that ends the output; it is empty where the decoder
    writes the whole text.
    """

    parts: list[list[int]]
    read: list[int]
    sentinels: tuple[int, ...] = ()

    def spans(self, ids: Sequence[int]) -> list[list[int]]:
        """Return the span of each gap in the decoder's output; empty for gaps that it skipped."""
        spans: list[list[int]] = [[] for _ in self.parts[1:]]
        place = -1
        for i in ids:
            if i in self.sentinels:
                place = self.sentinels.index(i)
            elif 0 <= place < len(spans):
                spans[place].append(i)
        return spans

    def filled(self, ids: Sequence[int]) -> list[int]:
        """Return the ids of the text with its gaps filled from the decoder's output."""
        spans = [*self.spans(ids), list[int]()]
        return [i for part, span in zip(self.parts, spans, strict=True) for i in (*part, *span)]


def predicts_spans(run: TrainedModel) -> bool:
    """Return whether the decoder writes only the spans (T5), or the whole text (BART)."""
    batching = run.recipe.train.batching
    return isinstance(batching, DenoisingConfig) and isinstance(
        batching.noise, SpanCorruptionConfig
    )


def gapped(run: TrainedModel, text: str, number: int) -> Gapped:
    """Split a text at its gaps, and build the ids that the encoder reads.

    Raises `TextError` for too many gaps, and if the decoder writes spans, for a text without a gap.
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
    marks = [mask_id_of(tokenizer)] * n_gaps if not predicts_spans(run) else []
    if predicts_spans(run):
        every_sentinel = sentinel_ids_of(tokenizer)
        most = len(every_sentinel) - 1
        if not 1 <= n_gaps <= most:
            raise TextError(f"text {number}: {n_gaps} gaps: mark 1 to {most} of them by {MASKS[0]}")
        sentinels, marks = every_sentinel[: n_gaps + 1], [*every_sentinel[:n_gaps]]
    read = [
        *parts[0],
        *(i for mark, part in zip(marks, parts[1:], strict=True) for i in (mark, *part)),
    ]
    return Gapped(parts, [*before, *read, *after], sentinels)


def before_gap(tokenizer: Tokenizer, part: str) -> str:
    """Return the text before a gap, without a space that belongs to the next word."""
    return part.removesuffix(" ") if joins_spaces(tokenizer) else part


def joins_spaces(tokenizer: Tokenizer) -> bool:
    """Return whether the space before a word is in the word's first token."""
    spaced, alone = tokenizer.codec.encode([" a", "a"])
    return len(spaced) == len(alone) and spaced != alone


def restored(
    run: TrainedModel,
    texts: Sequence[str],
    decoding: DecodingConfig,
    max_new_tokens: int | None = None,
    *,
    plain: bool = True,
    first: int = 0,
) -> list[list[Generated]]:
    """Fill the gaps of each text, and return the best results; an empty text stays empty.

    Raises `InputError` for a string in `stop` and for a compiled graph, which are not `plain`.
    """
    if not plain:
        raise InputError(f"{run.name}: a text with gaps takes no stop and no compiled graph")
    gaps = [
        gapped(run, text, n) if text.strip() else None for n, text in enumerate(texts, first + 1)
    ]
    not_empty = [text for text in gaps if text is not None]
    results = iter(_decode(run, not_empty, decoding, max_new_tokens, first))
    return [
        [BLANK] if text is None else [_with_text(run, text, best) for best in next(results)]
        for text in gaps
    ]


def _decode(
    run: TrainedModel,
    gaps: Sequence[Gapped],
    decoding: DecodingConfig,
    most: int | None,
    first: int,
) -> list[list[Generated]]:
    model, target = run.model, run.tokenizers.target
    assert isinstance(model, EncoderDecoderModel)
    for number, text in enumerate(gaps, first + 1):
        positions_for(model.source_embed, number, text.read)
    return translate(
        model,
        [text.read for text in gaps],
        later(decoding, first),
        max_new_tokens=most,
        bos_id=target.bos_id,
        eos_id=target.eos_ids,
        text_decoder=TextDecoder(target),
    )


def _with_text(run: TrainedModel, gaps: Gapped, generated: Generated) -> Generated:
    """Replace the generated text by the whole text with its gaps filled."""
    if not gaps.sentinels:
        return generated
    return replace(generated, text=run.tokenizers.source.decode(gaps.filled(generated.ids)))


def fill_gaps(
    run: TrainedModel, texts: Sequence[str], decoding: DecodingConfig, first: int = 0
) -> list[Filled]:
    """Fill the gaps of each text, and return it with the span of each gap and its probability.

    There are no spans from a decoder that writes the whole text, which does not mark the gaps.
    """
    gaps = [gapped(run, text, n) for n, text in enumerate(texts, first + 1)]
    if empty := next((n for n, text in enumerate(gaps, first + 1) if len(text.parts) == 1), None):
        raise TextError(f"text {empty}: no {MASKS[0]} to fill")
    results = _decode(run, gaps, decoding, None, first)
    return [
        Filled(
            _with_text(run, gap, best).text, _candidates(run, gap, best) if gap.sentinels else []
        )
        for gap, (best, *_) in zip(gaps, results, strict=True)
    ]


@torch.inference_mode()
def _candidates(
    run: TrainedModel, gaps: Gapped, generated: Generated
) -> list[tuple[Candidate, ...]]:
    """Return the span of each gap, with the joint probability of its tokens and its end.

    There is none for a gap that the decoder left out. A span ends with the next sentinel or the end
    token; the last span of a decoder that was stopped before has no end.
    """
    tokenizer = run.tokenizers.target
    ended = generated.finished == "eos"
    read = [tokenizer.bos_id, *(generated.ids if ended else generated.ids[:-1])]
    source, target = (torch.tensor([ids], device=run.device) for ids in (gaps.read, read))
    logits = run.model(source=source, target=target)[0].float().log_softmax(-1)
    sure = [row[i].item() for row, i in zip(logits, generated.ids, strict=False)]
    scores, place = dict[int, float](), -1
    for i, score in zip(generated.ids, sure, strict=True):
        if place in scores:
            scores[place] += score
        if i in gaps.sentinels:
            place = gaps.sentinels.index(i)
            scores.setdefault(place, 0.0)
    if ended and place in scores:
        scores[place] += logits[-1, list(tokenizer.eos_ids)].logsumexp(-1).item()
    texts = [tokenizer.decode(span) for span in gaps.spans(generated.ids)]
    return [
        (Candidate(text, exp(scores[place])),) if place in scores else ()
        for place, text in enumerate(texts)
    ]
