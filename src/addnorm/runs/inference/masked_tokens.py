"""Filling masks in texts with a masked language model."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from addnorm.data.ids.framing import around
from addnorm.data.tokenizing.sides import MASKS, mask_id_of
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.errors import InputError, TextError
from addnorm.runs.inference.decoding import decoding_for
from addnorm.runs.inference.denoiser import before_gap, fill_gaps
from addnorm.runs.inference.results import Candidate, Filled
from addnorm.runs.inference.text import batch_logits
from addnorm.runs.trained_model import TrainedModel
from addnorm.tasks.hidden import Denoising, Hidden
from addnorm.tasks.registry import wrong_task

MASKED = re.compile("|".join(map(re.escape, MASKS)))


def check_fills(run: TrainedModel) -> None:
    """Raise `InputError` for a model of another task."""
    if not isinstance(run.task_value, Hidden):
        raise wrong_task(run, "fills no masks: train one on batches of kind masked or denoising")


@dataclass(frozen=True)
class Gaps:
    """A text as ids, and the indices of its masks."""

    ids: list[int]
    places: list[int]


def fill(
    run: TrainedModel, texts: Sequence[str], top_k: int = 5, batch_size: int = 64, first: int = 0
) -> list[Filled]:
    """Fill the masks of each text (see `Run.fill`); `first` is the number of texts before."""
    if top_k < 1:
        raise InputError(f"`top_k = {top_k}`: must be at least 1")
    if isinstance(run.task_value, Denoising):
        return fill_gaps(run, texts, decoding_for(run), first)
    check_fills(run)
    tokenizer = run.tokenizers.source
    results: list[Filled] = []
    for start in range(0, len(texts), batch_size):
        group = texts[start : start + batch_size]
        gaps = [gaps_of(tokenizer, text, n) for n, text in enumerate(group, first + start + 1)]
        logits = batch_logits(run, [text.ids for text in gaps], first + start)
        text_ids = [tokenizer.is_text(i) for i in range(logits.shape[-1])]
        able = torch.tensor(text_ids, device=logits.device)
        for text, row in zip(gaps, logits, strict=True):
            # A mask hides text, so no special token can stand there.
            shares = row[text.places].float().masked_fill(~able, -torch.inf).softmax(-1)
            best = shares.topk(min(top_k, sum(text_ids)), -1)
            masks = [
                _candidates(tokenizer, ids, probabilities)
                for ids, probabilities in zip(
                    best.indices.tolist(), best.values.tolist(), strict=True
                )
            ]
            results.append(Filled(_filled(tokenizer, text, best.indices[:, 0].tolist()), masks))
    return results


def _candidates(
    tokenizer: Tokenizer, ids: list[int], probabilities: list[float]
) -> tuple[Candidate, ...]:
    names = tokenizer.pieces(ids)
    return tuple(Candidate(*candidate) for candidate in zip(names, probabilities, strict=True))


def _filled(tokenizer: Tokenizer, gaps: Gaps, chosen: list[int]) -> str:
    ids = [*gaps.ids]
    for place, i in zip(gaps.places, chosen, strict=True):
        ids[place] = i
    return tokenizer.decode(
        [i for i in ids if i not in tokenizer.special_ids or i == tokenizer.unk_id]
    )


def gaps_of(tokenizer: Tokenizer, text: str, number: int = 1) -> Gaps:
    """Return the ids of a text with masks. Raises `TextError` for a text without a mask."""
    before, after = around("classification", tokenizer)
    mask_id = mask_id_of(tokenizer)
    first, *others = MASKED.split(text)
    if not others:
        raise TextError(f"text {number}: no {MASKS[1]} to fill")
    ids = [*before, *tokenizer.encode(before_gap(tokenizer, first))]
    places: list[int] = []
    for n, part in enumerate(others, 1):
        places.append(len(ids))
        last = n == len(others)
        ids += [mask_id, *tokenizer.encode(part if last else before_gap(tokenizer, part))]
    return Gaps([*ids, *after], places)
