"""`generate`, `translate` and `transcribe` for batches, and `stream` for a single prompt."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated
from warnings import warn

import torch
from pydantic import Field
from torch import Tensor

from addnorm.config import WORD
from addnorm.data.example import PROPERTIES
from addnorm.data.tokenizing.text_decoding import TextDecoder, TextStream
from addnorm.data.tokenizing.tokenizers import BOS_ID, EOS_ID
from addnorm.errors import InputError, Unfinished
from addnorm.generate.beam import BeamConfig, beam_search
from addnorm.generate.compiled import CompiledContinuation, CompiledTranslation
from addnorm.generate.generated import Finished, Generated
from addnorm.generate.next_token import (
    Continuation,
    Ids,
    NextToken,
    Transcription,
    Translation,
    floats,
    ints,
)
from addnorm.generate.rules import NO_TOKEN_ALLOWED, Rules, within_grammars
from addnorm.generate.sampling import Choose, GreedyConfig, SampleConfig, maxima
from addnorm.generate.self_speculation import SelfSpeculation
from addnorm.models import DecoderModel, EncoderDecoderModel

DecodingConfig = Annotated[
    GreedyConfig | SampleConfig | BeamConfig, Field(discriminator="kind"), WORD
]
"""Any decoding strategy."""

NEW_TOKENS = 256
"""The default `max_new_tokens` of a language model."""

UNFINISHED = "a text reached max_new_tokens before it was complete by its grammar: raise the limit"

WITH_NEVER = (Continuation, SelfSpeculation, Translation, Transcription)
"""Those that name tokens which are never generated."""

FRAMES_PER_TOKEN = 4
"""The fewest frames, of a hundredth of a second, that a token of speech lasts."""

Ends = int | Sequence[int] | None
"""The end token, several end tokens, or none."""


def generate(
    model: DecoderModel | Continuation | CompiledContinuation | SelfSpeculation,
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
    single texts, and one that drafts its own tokens, generate one text after another. Raises
    `InputError` for a prompt that the model cannot process.
    """
    rows = [_nonempty(i, prompt, start_id) for i, prompt in enumerate(prompts, 1)]
    if isinstance(model, DecoderModel):
        model = Continuation(model, never=_never(text_decoder))
    alone = isinstance(model, SelfSpeculation)
    if alone or (isinstance(model, CompiledContinuation) and not model.several):
        batch_size = 1
    return decode(
        model,
        rows,
        decoding,
        [decoding.rules.limit(max_new_tokens, len(row), NEW_TOKENS) for row in rows],
        eos_id=eos_id,
        text_decoder=text_decoder,
        batch_size=batch_size,
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
    plain = isinstance(model, EncoderDecoderModel)
    return decode(
        Translation(model, bos_id, never=_never(text_decoder)) if plain else model,
        sources,
        decoding,
        [decoding.rules.limit(max_new_tokens, 1, len(source) + 50) for source in sources],
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
    """Write the text of each image or clip; return its texts, best first.

    At most `max_new_tokens` are generated; the default is set by the rules of `decoding` or else a
    quarter of the frames of a clip + 50, and 256 for an image. Clips of similar length are
    encoded together, and images of one size.
    """
    lengths, timed = transcription.lengths, PROPERTIES[transcription.medium].frames
    by_signal: dict[int, list[Generated]] = {}
    for group in transcription.together():
        order = sorted(group, key=lengths.__getitem__, reverse=True)
        usual = [lengths[i] // FRAMES_PER_TOKEN + 50 if timed else NEW_TOKENS for i in order]
        texts = decode(
            transcription,
            [[i] for i in order],
            decoding,
            [decoding.rules.limit(max_new_tokens, transcription.counted, n) for n in usual],
            eos_id=eos_id,
            text_decoder=text_decoder,
            batch_size=batch_size,
        )
        by_signal |= zip(order, texts, strict=True)
    return [by_signal[i] for i in range(len(lengths))]


def _never(text_decoder: TextDecoder | None) -> tuple[int, ...]:
    """The tokens that the tokenizer excludes from generated text."""
    return () if text_decoder is None else text_decoder.tokenizer.never_ids


def decode(
    next_token: NextToken,
    prompts: Sequence[Ids],
    decoding: DecodingConfig,
    most_new: Sequence[int],
    *,
    eos_id: Ends,
    text_decoder: TextDecoder | None = None,
    batch_size: int = 64,
) -> list[list[Generated]]:
    """Decode the continuations of each prompt, at most `most_new[i]` tokens long.

    Prompts of similar length are batched together, longest first. Results are in the order of the
    prompts and do not depend on the other prompts of a batch.
    """
    if isinstance(decoding, BeamConfig) and text_decoder is not None:
        _check_beams(text_decoder)
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}.")
    limits = [
        _limit(next_token, i, prompt, n)
        for i, (prompt, n) in enumerate(zip(prompts, most_new, strict=True), 1)
    ]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]), reverse=True)
    results: dict[int, list[Generated]] = {}
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        batch, most = [prompts[i] for i in rows], [limits[i] for i in rows]
        rules = _rules(next_token, decoding, batch, most, eos_id)
        if isinstance(decoding, BeamConfig):
            texts = beam_search(next_token, batch, decoding, most, _ends(eos_id), rules)
            texts = [
                [_with_text(generated, text_decoder, prompt) for generated in best]
                for prompt, best in zip(batch, texts, strict=True)
            ]
        else:
            choose = decoding.choose(rows)
            pieces = write(next_token, batch, choose, most, eos_id, text_decoder, rules)
            texts = collected(pieces, len(rows))
        results.update(zip(rows, _with_depths(next_token, texts), strict=True))
    return [results[i] for i in range(len(prompts))]


def _check_beams(text_decoder: TextDecoder) -> None:
    """Raise `InputError` for stop conditions that beam search does not support."""
    if text_decoder.stop:
        raise InputError('stop strings need kind = "greedy" or "sample": beams end at eos alone.')
    if text_decoder.grammar is not None:
        raise InputError(
            "beam search follows no grammar: choose `beams = 1`, or sample with a `temperature`"
        )


def _with_depths(next_token: NextToken, texts: list[list[Generated]]) -> list[list[Generated]]:
    """Add to each text the depths at which its tokens left the model, if early exit is on."""
    if not isinstance(next_token, Continuation) or next_token.early is None:
        return texts
    pairs = zip(texts, next_token.early.text_depths, strict=True)
    return [[replace(generated, depth=depth) for generated in best] for best, depth in pairs]


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
    most = decoding.rules.limit(max_new_tokens, len(prompt), NEW_TOKENS)
    limit = _limit(next_token, 1, prompt, most)
    rules = _rules(next_token, decoding, [prompt], [limit], eos_id)
    choose = decoding.choose([0])
    pieces = write(next_token, [prompt], choose, [limit], eos_id, text_decoder, rules)
    return (piece.text for piece in pieces if piece.text)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A generated token of a row; the last one of a row also has the reason in `finished`."""

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
        scores = logits if rules is None else rules.apply(logits, history)
        tokens = choose(_allowed(scores, [texts[row] for row in rows], ends), rows)
        written = zip(rows, ints(tokens), floats(_log_p(logits, tokens)), strict=True)
        pieces = [
            _piece(row, token, log_p, texts[row], token in ends, step == limits[row])
            for row, token, log_p in written
        ]
        yield from pieces
        unfinished = [i for i, piece in enumerate(pieces) if piece.finished is None]
        if not unfinished:
            return
        if len(unfinished) < len(pieces):
            selected = torch.tensor(unfinished, device=logits.device)
            rows, tokens = [rows[i] for i in unfinished], tokens[selected]
            history = history[selected]
            rules = None if rules is None else rules.keep(selected)
            next_token.select(selected)
        if rules is not None:
            history = torch.cat([history, tokens[:, None]], dim=1)
        logits = next_token.step(tokens)


def _allowed(scores: Tensor, texts: Sequence[TextStream | None], ends: Ids) -> Tensor:
    """The scores, with -inf for tokens that the texts' grammars do not allow.

    Raises `InputError` if a text has no allowed token.
    """
    grammars = [None if text is None else text.grammar for text in texts]
    scores = within_grammars(scores, grammars, ends)
    if -inf in (largest := maxima(scores)):
        grammar = grammars[largest.index(-inf)]
        raise InputError(NO_TOKEN_ALLOWED if grammar is None else grammar.why_none)
    return scores


def _rules(
    next_token: NextToken,
    decoding: DecodingConfig,
    prompts: Sequence[Ids],
    limits: Sequence[int],
    eos_id: Ends,
) -> Rules | None:
    """The rules for a batch; None if there are no rules. A target starts with `bos_id` alone."""
    config, before = decoding.rules, prompts
    if isinstance(next_token, Translation | Transcription):
        before = [[next_token.bos_id]] * len(prompts)
    if isinstance(next_token, WITH_NEVER) and next_token.never:
        config = replace(config, suppress_tokens=(*config.suppress_tokens, *next_token.never))
    stamps = next_token.stamps if isinstance(next_token, Transcription) else None
    return Rules.over(config, before, limits, _ends(eos_id), stamps)


def _piece(
    row: int, token: int, log_p: float, text: TextStream | None, ended: bool, last: bool
) -> Piece:
    finished: Finished | None = "eos" if ended else "length" if last else None
    written = ""
    if text is not None:
        written = "" if ended else text.push(token)
        finished = "stop" if text.is_complete and not ended else finished
        written += text.finish() if finished else ""
        finished = "stop" if text.stopped and not ended else finished
        if finished == "length" and text.is_unfinished:
            warn(UNFINISHED, Unfinished, stacklevel=2)
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
    if text_decoder is None:
        return generated
    return replace(generated, text=text_decoder.write(generated.ids, prompt))


def _ends(eos_id: Ends) -> Ids:
    if eos_id is None:
        return ()
    return (eos_id,) if isinstance(eos_id, int) else eos_id


def _nonempty(i: int, prompt: Ids, start_id: int | None) -> Ids:
    """The prompt; if it is empty, `start_id` alone."""
    if len(prompt) == 0 and start_id is None:
        raise InputError(f"prompt {i} is empty, and this model has no token to start from.")
    return prompt if len(prompt) else [start_id or 0]


def _limit(next_token: NextToken, i: int, prompt: Ids, most: int) -> int:
    if most < 1:
        raise InputError(f"`max_new_tokens = {most}`: must be at least 1")
    return min(most, next_token.remaining_length(i, prompt))
