"""A generated text, and why it ended."""

from dataclasses import dataclass
from typing import Literal

Finished = Literal["eos", "stop", "length"]
"""Why generation of a row ended: an end token, a stop string, or the length limit."""


@dataclass(frozen=True)
class Generated:
    """A generated text, its score, why it ended, and its tokens without the end token.

    `score` is the log-probability of `ids` (and of the end token, if there is one) under the model,
    before any sampling filters; beam search divides it by its length normaliser. `text` is empty
    unless a `TextDecoder` was given; if a stop string ended the row, `text` is everything before
    that string, while `ids` holds every token that was generated. `depth` is the mean number of
    layers of its tokens after the first, of all beams, if the model has early exits; None otherwise
    and for a text of one token.
    """

    text: str
    score: float
    finished: Finished
    depth: float | None = None
    ids: tuple[int, ...] = ()
