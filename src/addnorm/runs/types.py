"""What may be asked of a run, and what it answers with."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

Texts = list[str] | tuple[str, ...]
"""Several texts; a single string is one."""

Sentence = str | Sequence[str]
"""A sentence to tag: its words, or a string with spaces between them."""

Pooling = Literal["mean", "first", "last", "head"]
"""How the vectors of tokens become the vector of a text."""


class DecodingOptions(TypedDict, total=False):
    """How the next token is chosen, in words; an option that is left out has its default.

    `beams` searches (1 is greedy); the others sample: `temperature` divides the logits, `top_k`,
    `top_p` and `min_p` leave unlikely tokens out, `seed` says which numbers are drawn.
    """

    beams: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int


@dataclass(frozen=True)
class Classified:
    """The likeliest class of a text, and the probability of every class."""

    label: str
    probabilities: dict[str, float]


@dataclass(frozen=True)
class Written:
    """One text that a model wrote, its log-probability, and why it ended there."""

    text: str
    score: float
    finished: str
