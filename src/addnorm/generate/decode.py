"""`generate`, `translate` and `transcribe` for batches, and `stream` for a single prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from addnorm.config import WORD
from addnorm.data.tokenizing.tokenizers import BOS_ID, EOS_ID
from addnorm.errors import InputError
from addnorm.generate.beam import BeamConfig, beam_search
from addnorm.generate.compiled import CompiledContinuation, CompiledTranslation
from addnorm.generate.next_token import Continuation, Ids, NextToken, Translation, floats, ints
from addnorm.generate.rules import Rules
from addnorm.generate.sampling import Choose, GreedyConfig, SampleConfig
from addnorm.generate.text_decoding import Finished, Generated, TextDecoder, TextStream
from addnorm.generate.transcription import Transcription
from addnorm.models import DecoderModel, EncoderDecoderModel

DecodingConfig = Annotated[
    GreedyConfig | SampleConfig | BeamConfig, Field(discriminator="kind"), WORD
]
"""Any decoding strategy."""

NEW_TOKENS = 256
"""The default `max_new_tokens` of a language model."""

FRAMES_PER_TOKEN = 4
"""Frames of a hundredth of a second that a token of speech has at the least."""

Ends = int | Sequence[int] | None
"""The end token, several end tokens, or none."""


def generate(
    model: DecoderModel | Continuation | CompiledContinuation,
    prompts: Sequence[Ids],
    decoding: DecodingConfig,
    *,
    max_new_tokens: int | None = None,
    eos_id: Ends = EOS_ID,
    start_id: int | None = EOS_ID,
    text_decoder: TextDecoder | None = None,
    batch_size: int = 64,
) -> list[list[Generated]]:
    """Continue each prompt; return its continuations, best first (one unless `n_best` > 1).

    An empty prompt begins with `start_id`, the token that separates documents in training. At most
    `max_new_tokens` are generated, including the end token; the default is set by the rules of
    `decoding` or else 256, and the model's maximum length is never exceeded. A compiled model for
    single texts generates one text after another. Raises `InputError` for a prompt that the model
    cannot process.
    """
    begun = [_begun(i, prompt, start_id) for i, prompt in enumerate(prompts)]
    wanted = [decoding.rules.limit(max_new_tokens, len(row), NEW_TOKENS) for row in begun]
    return decode(
        Continuation(model, never=_never(text_decoder))
        if isinstance(model, DecoderModel)
        else model,
        begun,
        decoding,
        wanted,
        eos_id=eos_id,
        text_decoder=text_decoder,
        batch_size=1
        if isinstance(model, CompiledContinuation) and not model.several
        else batch_size,
    )


def translate(
    model: EncoderDecoderModel | CompiledTranslation,
    sources: Sequence[Ids],
    decoding: DecodingConfig,
    *,
    max_new_tokens: int | None = None,
    bos_id: int = BOS_ID,
    eos_id: Ends = EOS_ID,
    text_decoder: TextDecoder | None = None,
    batch_size: int = 64,
) -> list[list[Generated]]:
    """Translate each source; return its translations, best first (one unless `n_best` > 1).

    At most `max_new_tokens` are generated; the default is set by the rules of `decoding` or else
    the source length + 50, as in Vaswani et al. 2017, section 6.1. Raises `InputError` for a source
    that is empty or too long.
    """
    wanted = [decoding.rules.limit(max_new_tokens, 1, len(s) + 50) for s in sources]
    return decode(
        _translation(model, bos_id, text_decoder),
        sources,
        decoding,
        wanted,
        eos_id=eos_id,
        text_decoder=text_decoder,
        batch_size=batch_size,
    )


def transcribe(
    transcription: Transcription,
    decoding: DecodingConfig,
    *,
    max_new_tokens: int | None = None,
    eos_id: Ends = EOS_ID,
    text_decoder: TextDecoder | None = None,
    batch_size: int = 64,
) -> list[list[Generated]]:
    """Write the text of each image or clip; return those of each, best first.

    At most `max_new_tokens` are generated; the default is set by the rules of `decoding` or else a
    quarter of the frames of a clip + 50, and 256 for an image. Clips of similar length are
    encoded together, and images of one size.
    """
    lengths, sound = transcription.lengths, transcription.medium == "audio"
    by_signal: dict[int, list[Generated]] = {}
    for group in transcription.together():
        order = sorted(group, key=lengths.__getitem__, reverse=True)
        usual = [lengths[i] // FRAMES_PER_TOKEN + 50 if sound else NEW_TOKENS for i in order]
        found = decode(
            transcription,
            [[i] for i in order],
            decoding,
            [decoding.rules.limit(max_new_tokens, transcription.counted, n) for n in usual],
            eos_id=eos_id,
            text_decoder=text_decoder,
            batch_size=batch_size,
        )
        by_signal |= zip(order, found, strict=True)
    return [by_signal[i] for i in range(len(lengths))]


def _translation(
    model: EncoderDecoderModel | CompiledTranslation, bos_id: int, text_decoder: TextDecoder | None
) -> Translation:
    if isinstance(model, CompiledTranslation):
        return model
    return Translation(model, bos_id, never=_never(text_decoder))


def _never(text_decoder: TextDecoder | None) -> tuple[int, ...]:
    """What the folder of a tokenizer never lets a model write."""
    return () if text_decoder is None else text_decoder.tokenizer.never_ids


def decode(
    next_token: NextToken,
    prompts: Sequence[Ids],
    decoding: DecodingConfig,
    wanted: Sequence[int],
    *,
    eos_id: Ends,
    text_decoder: TextDecoder | None = None,
    batch_size: int = 64,
) -> list[list[Generated]]:
    """Decode the continuations of each prompt, at most `wanted[i]` tokens long.

    Prompts of similar length are batched together, longest first. Results are in the order of the
    prompts and do not depend on the other prompts of a batch.
    """
    if isinstance(decoding, BeamConfig) and text_decoder is not None and text_decoder.stop:
        raise InputError('stop strings need kind = "greedy" or "sample": beams end at eos alone.')
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    limits = [
        _limit(next_token, i, prompt, n)
        for i, (prompt, n) in enumerate(zip(prompts, wanted, strict=True))
    ]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True)
    results: dict[int, list[Generated]] = {}
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        batch, most = [prompts[i] for i in rows], [limits[i] for i in rows]
        rules = _rules(next_token, decoding, batch, most, eos_id)
        if isinstance(decoding, BeamConfig):
            found = beam_search(next_token, batch, decoding, most, _ends(eos_id), rules)
            found = [
                [_with_text(g, text_decoder, prompt) for g in best]
                for prompt, best in zip(batch, found, strict=True)
            ]
        else:
            choose = decoding.choose(rows)
            found = collected(
                write(next_token, batch, choose, most, eos_id, text_decoder, rules), len(rows)
            )
        results.update(zip(rows, _with_depths(next_token, found), strict=True))
    return [results[i] for i in range(len(prompts))]


def _with_depths(next_token: NextToken, found: list[list[Generated]]) -> list[list[Generated]]:
    """The texts of a batch, with their depths where tokens could leave early."""
    if not isinstance(next_token, Continuation) or next_token.early is None:
        return found
    both = zip(found, next_token.early.text_depths, strict=True)
    return [[replace(one, depth=depth) for one in best] for best, depth in both]


def stream(
    next_token: NextToken,
    prompt: Ids,
    decoding: GreedyConfig | SampleConfig,
    *,
    max_new_tokens: int | None = None,
    text_decoder: TextDecoder,
    eos_id: Ends = EOS_ID,
) -> Iterator[str]:
    """Yield the text of one continuation piece by piece, as soon as each piece is final.

    Joined, the pieces are the `text` that `decode` returns for this prompt. Raises `InputError` at
    the call, not at the first piece.
    """
    wanted = decoding.rules.limit(max_new_tokens, len(prompt), NEW_TOKENS)
    limit = _limit(next_token, 0, prompt, wanted)
    rules = _rules(next_token, decoding, [prompt], [limit], eos_id)
    choose = decoding.choose([0])
    pieces = write(next_token, [prompt], choose, [limit], eos_id, text_decoder, rules)
    return (piece.text for piece in pieces if piece.text)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One generated token of one row; the last one of a row has the reason in `finished`."""

    row: int
    token: int
    log_p: float
    text: str
    finished: Finished | None


def write(
    next_token: NextToken,
    prompts: Sequence[Ids],
    choose: Choose,
    limits: Sequence[int],
    eos_id: Ends,
    text_decoder: TextDecoder | None = None,
    rules: Rules | None = None,
) -> Iterator[Piece]:
    """Generate all rows token by token; finished rows leave the batch."""
    ends = _ends(eos_id)
    logits = next_token.start(prompts)
    rows = list(range(len(prompts)))
    texts = [None if text_decoder is None else text_decoder.open(prompt) for prompt in prompts]
    history = torch.empty(len(prompts), 0, dtype=torch.long, device=logits.device)
    for step in range(1, max(limits) + 1):
        allowed = logits if rules is None else _some(rules.apply(logits, history))
        tokens = choose(allowed, rows)
        written = zip(rows, ints(tokens), floats(_log_p(logits, tokens)), strict=True)
        pieces = [
            _piece(row, token, log_p, texts[row], token in ends, step == limits[row])
            for row, token, log_p in written
        ]
        yield from pieces
        going = [i for i, piece in enumerate(pieces) if piece.finished is None]
        if not going:
            return
        if len(going) < len(pieces):
            kept = torch.tensor(going, device=logits.device)
            rows, tokens = [rows[i] for i in going], tokens[kept]
            history = history[kept]
            rules = None if rules is None else rules.keep(kept)
            next_token.select(kept)
        if rules is not None:
            history = torch.cat([history, tokens[:, None]], dim=1)
        logits = next_token.step(tokens)


def _some(scores: Tensor) -> Tensor:
    """Return the scores. Raises `InputError` if a row has no allowed token."""
    if bool((scores == -inf).all(-1).any()):
        raise InputError("the rules of decoding leave no token to write")
    return scores


def _rules(
    next_token: NextToken,
    decoding: DecodingConfig,
    prompts: Sequence[Ids],
    limits: Sequence[int],
    eos_id: Ends,
) -> Rules | None:
    """The rules for a batch, or None. For translation, the target starts with `bos_id`."""
    config, before = decoding.rules, prompts
    if isinstance(next_token, Translation | Transcription):
        before = [[next_token.bos_id]] * len(prompts)
    if isinstance(next_token, Continuation | Translation | Transcription) and next_token.never:
        config = replace(config, suppress_tokens=(*config.suppress_tokens, *next_token.never))
    return Rules.over(config, before, limits, _ends(eos_id))


def _piece(
    row: int, token: int, log_p: float, text: TextStream | None, ended: bool, last: bool
) -> Piece:
    finished: Finished | None = "eos" if ended else "length" if last else None
    written = ""
    if text is not None:
        written += "" if ended else text.push(token)
        written += text.finish() if finished else ""
        finished = "stop" if text.stopped and not ended else finished
    return Piece(row=row, token=token, log_p=log_p, text=written, finished=finished)


def collected(pieces: Iterator[Piece], n_rows: int) -> list[list[Generated]]:
    """Join the pieces of each row into the single continuation of its prompt."""
    rows: list[list[Piece]] = [[] for _ in range(n_rows)]
    for piece in pieces:
        rows[piece.row].append(piece)
    return [[_generated(row)] for row in rows]


def _generated(row: list[Piece]) -> Generated:
    finished = row[-1].finished
    assert finished is not None
    ids = tuple(piece.token for piece in row)
    return Generated(
        ids=ids[:-1] if finished == "eos" else ids,
        score=sum(piece.log_p for piece in row),
        finished=finished,
        text="".join(piece.text for piece in row),
    )


def _log_p(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(-1, tokens[:, None])[:, 0]


def _with_text(generated: Generated, text_decoder: TextDecoder | None, prompt: Ids) -> Generated:
    return (
        generated
        if text_decoder is None
        else replace(generated, text=text_decoder.write(generated.ids, prompt))
    )


def _ends(eos_id: Ends) -> Ids:
    if eos_id is None:
        return ()
    return (eos_id,) if isinstance(eos_id, int) else eos_id


def _begun(i: int, prompt: Ids, start_id: int | None) -> Ids:
    if len(prompt) == 0 and start_id is None:
        raise InputError(f"prompt {i} is empty, and this model has no token to start from.")
    return prompt if len(prompt) else [start_id or 0]


def _limit(next_token: NextToken, i: int, prompt: Ids, wanted: int) -> int:
    if wanted < 1:
        raise InputError(f"`max_new_tokens = {wanted}`: must be at least 1")
    return min(wanted, next_token.remaining_length(i, prompt))
