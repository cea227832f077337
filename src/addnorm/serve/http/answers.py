"""The text of an answer from its tokens as they come, with stop strings and log-probabilities."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from addnorm.data.tokenizing.text_decoding import TextDecoder
from addnorm.data.tokenizing.tokenizers import Tokenizer
from addnorm.serve.engine.events import Best, Event, PromptScores

FinishReason = Literal["stop", "length"]

LEAST = -9999.0
"""What stands for a log-probability of minus infinity, which JSON does not have."""


@dataclass(frozen=True)
class Score:
    """A token of an answer or a prompt, with its log-probability."""

    token: int
    log_prob: float | None
    best: Best
    offset: int
    """The number of characters before it."""


@dataclass(frozen=True)
class Piece:
    """The addition of one event to an answer: text, tokens, and perhaps the reason for its end."""

    text: str
    scores: tuple[Score, ...] = ()
    finished: FinishReason | None = None
    by_stop: bool = False
    """Whether a stop string ended it, of which the engine does not know."""
    n_tokens: int = 0
    score: float = 0.0
    """The log-probability of the tokens, or the score of a result of beam search."""


class AnswerText:
    """Converts the events of one answer to pieces of text.

    `drop_space` is for a prompt whose white space at the end its ids lack (see `loses_space`).
    """

    def __init__(
        self, decoder: TextDecoder, prompt: Sequence[int] = (), *, drop_space: bool = False
    ) -> None:
        self._stream = decoder.open(prompt)
        self._offsets = Offsets(decoder.tokenizer, prompt if decoder.continues else (), drop_space)
        self._drop_space = drop_space
        self._length = 0
        self._waiting: list[Score] = []  # the tokens whose text is held back

    def push(self, event: Event) -> Piece:
        """The piece for an event, cut at a stop string. After that nothing more must be pushed."""
        texts: list[str] = []
        scored = bool(event.log_probs)
        log_probs = event.log_probs or (None,) * len(event.tokens)
        best = event.best or ((),) * len(event.tokens)
        last, n_tokens = len(event.tokens) - 1, 0
        for i, token in enumerate(event.tokens):
            if self._stream.stopped:
                break
            n_tokens += 1
            offset = self._offsets.push(token) if scored else 0
            self._waiting.append(Score(token, log_probs[i], best[i], offset))
            if not (event.finished == "eos" and i == last and event.score is None):
                self._add(texts, self._stream.push(token))
        if event.finished is not None:
            self._add(texts, self._stream.finish())
        ended = event.finished in ("eos", "stop")
        reason = "stop" if self._stream.stopped or ended else None
        if reason is None and event.finished is not None:
            reason = "length"
        return Piece(
            text="".join(texts),
            scores=self._settled(event.finished is not None and not self._stream.stopped),
            finished=reason,
            by_stop=self._stream.stopped and event.finished is None,
            n_tokens=n_tokens,
            score=sum(event.log_probs[:n_tokens]) if event.score is None else event.score,
        )

    def _settled(self, ended: bool) -> tuple[Score, ...]:
        """The waiting tokens whose text is final; at the end all but those after a stop string."""
        n = len(self._waiting)
        while not ended and n and self._waiting[n - 1].offset >= self._length:
            n -= 1
        settled, self._waiting = tuple(self._waiting[:n]), self._waiting[n:]
        return settled

    def _add(self, texts: list[str], text: str) -> None:
        if text and self._drop_space:
            text, self._drop_space = text.removeprefix(" "), False
        self._length += len(text)
        texts.append(text)


class Offsets:
    """The character offset of each token in a text."""

    def __init__(
        self, tokenizer: Tokenizer, after: Sequence[int] = (), drop_space: bool = False
    ) -> None:
        self._bytes = tokenizer.byte_ids
        self._stream = tokenizer.stream(after)
        self._out, self._held = 0, ""
        self._drop_space = drop_space

    def push(self, token: int) -> int:
        """Add a token; return the number of characters before it.

        U+FFFD of earlier bytes is before it, unless it completes their character.
        """
        out, before = self._out, self._held
        text = self._stream.push(token)
        self._held = self._stream.held
        after = text + self._held
        if text and self._drop_space:
            text, self._drop_space = text.removeprefix(" "), False
        self._out += len(text)
        if not before or (token in self._bytes and not text):
            return out
        if after == before:
            return out + len(before) - 1
        return out + next(
            (n for n in range(len(before)) if before[n] != after[n : n + 1]), len(before)
        )


def scores_of_prompt(
    tokenizer: Tokenizer, prompt: Sequence[int], scores: PromptScores | None, text: str = ""
) -> list[Score]:
    """The scores of a prompt's tokens; the first one has no log-probability.

    The `text` of the prompt may spell special tokens, which `Offsets` gives no characters.
    """
    offsets = Offsets(tokenizer)
    begins, n_spelt = list[int](), 0
    for token in prompt:
        begins.append(offsets.push(token) + n_spelt)
        name = tokenizer.codec.name(token) or ""
        if token in tokenizer.special_ids and text.startswith(name, begins[-1]):
            n_spelt += len(name)
    log_probs = (None, *(scores.log_probs if scores else (None,) * (len(prompt) - 1)))
    best = ((), *(scores.best if scores and scores.best else ((),) * (len(prompt) - 1)))
    return [
        Score(token, log_probs[i], best[i], begin)
        for i, (token, begin) in enumerate(zip(prompt, begins, strict=True))
    ]


def finite(log_prob: float) -> float:
    """A log-probability that JSON can represent."""
    return max(log_prob, LEAST)


def completion_logprobs(
    tokenizer: Tokenizer, scores: Sequence[Score], shift: int = 0
) -> dict[str, Any]:
    """The `logprobs` of a completion; `shift` is the number of characters before it."""
    return {
        "tokens": [text_of(tokenizer, score.token)[0] for score in scores],
        "token_logprobs": [None if s.log_prob is None else finite(s.log_prob) for s in scores],
        "top_logprobs": [_by_text(tokenizer, score) for score in scores],
        "text_offset": [score.offset + shift for score in scores],
    }


def _by_text(tokenizer: Tokenizer, score: Score) -> dict[str, float] | None:
    """The log-probabilities of the best tokens and of the chosen one, by text."""
    if score.log_prob is None:
        return None
    pairs = [*score.best, (score.token, score.log_prob)]
    by_text: dict[str, float] = {}
    for token, log_prob in dict(pairs).items():
        text, _ = text_of(tokenizer, token)
        by_text[f"token_id:{token}" if text in by_text else text] = finite(log_prob)
    return by_text


def text_of(tokenizer: Tokenizer, token: int) -> tuple[str, bytes | None]:
    """The text of a token and its bytes; incomplete characters appear as `bytes:\xe4\xbd`.

    The bytes of a part of a character are None where the tokenizer does not tell them.
    """
    codec = tokenizer.codec
    [text] = codec.alone([token])
    if "\ufffd" not in text:
        return text, text.encode()
    if (content := codec.bytes_of(token)) is None:
        return codec.name(token) or "", None
    try:
        return content.decode(), content
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content), content


def chat_logprobs(tokenizer: Tokenizer, scores: Sequence[Score], n_best: int) -> dict[str, Any]:
    """The `logprobs` of a chat answer."""
    return {
        "content": [
            {
                **_entry(tokenizer, score.token, score.log_prob or 0.0),
                "top_logprobs": [_entry(tokenizer, *pair) for pair in score.best[:n_best]],
            }
            for score in scores
            if tokenizer.is_text(score.token)
        ],
        "refusal": None,
    }


def _entry(tokenizer: Tokenizer, token: int, log_prob: float) -> dict[str, Any]:
    text, content = text_of(tokenizer, token)
    return {
        "token": text,
        "logprob": finite(log_prob),
        "bytes": None if content is None else [*content],
    }
