"""A generated text, the reason why it ended, and for sound the times of its segments."""

from dataclasses import dataclass
from typing import Literal

Finished = Literal["eos", "stop", "length"]
"""Why generation of a row ended: an end token, a stop string, or the length limit."""


@dataclass(frozen=True)
class Segment:
    """A part of a sound's transcript, and its times in seconds."""

    start: float
    end: float
    text: str


@dataclass(frozen=True)
class Generated:
    """A generated text, its score, why it ended, and its tokens without the end token.

    `score` is the log-probability of `ids` (and of the end token, if there is one) under the model,
    before any sampling filters; beam search divides it by its length normaliser. `text` is empty
    unless a `TextDecoder` was given; if a stop string ended the row, `text` is everything before
    that string, while `ids` holds every token that was generated. `depth` is the mean number of
    layers of its tokens after the first, of all beams, if the model has early exits; None otherwise
    and for a text of one token. Of a sound that is read with time stamps, `segments` are the parts
    of the text, and `ids` those of all windows without the stamps; `segments` is None for any other
    text. `language` is the code of the language that Whisper was given or has detected.
    """

    text: str
    score: float
    finished: Finished
    depth: float | None = None
    ids: tuple[int, ...] = ()
    segments: tuple[Segment, ...] | None = None
    language: str | None = None
