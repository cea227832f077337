"""The events that an engine reports: new tokens, ends, and its load."""

from dataclasses import dataclass

from addnorm.serve.engine.sequence import Ended

Best = tuple[tuple[int, float], ...]
"""The most probable tokens at one place, best first, each with its log-probability."""


@dataclass(frozen=True)
class PromptScores:
    """The log-probability of each prompt token after the first, given those before it."""

    log_probs: tuple[float, ...]
    best: tuple[Best, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Event:
    """News about one answer of a request: a step's tokens, and perhaps its end.

    Log-probabilities are those of the model's own distribution, before temperature, filters,
    penalties and biases. They are reported where the request asks for them.
    """

    name: str
    """The request."""
    index: int = 0
    """Which of its answers."""
    tokens: tuple[int, ...] = ()
    """The new tokens, the end token included. A beam search reports all tokens at its end, without
    the end token.
    """
    log_probs: tuple[float, ...] = ()
    """The log-probability of each of the tokens."""
    best: tuple[Best, ...] = ()
    """The most probable tokens at the place of each."""
    prompt: PromptScores | None = None
    """Those of the prompt, once, in the first event of the request."""
    finished: Ended | None = None
    """Why the answer ended; None while it is open."""
    cached: int = 0
    """How many tokens of the prompt were in the prefix cache."""
    score: float | None = None
    """The score of a result of beam search."""
    error: str | None = None
    """Why the answer failed."""


@dataclass(frozen=True, kw_only=True)
class Stats:
    """The load of an engine."""

    running: int
    """Sequences in the present step."""
    waiting: int
    """Requests that wait."""
    pages: int = 0
    """The pages that are held; without pages, the tokens whose keys and values are."""
    pages_in_all: int = 0
    set_aside: int = 0
    """How often a sequence was set aside for lack of pages."""
    near_ties: int
    """How many greedy choices were between two tokens whose logits differ by less than 1e-4."""
    drafted: int = 0
    """How many tokens were drafted and verified."""
    accepted: int = 0
    """How many of them were right."""


@dataclass(frozen=True, kw_only=True)
class Description:
    """What an engine serves, as far as its clients need to know."""

    name: str
    """The run."""
    task: str
    vocab_size: int
    decoding: str
    """The kind of the model's own decoding."""
    capacity: int | None = None
    """The most tokens of a prompt and its answer that the memory holds; None without pages."""
    lines: tuple[str, ...]
    """How many requests fit into the memory; which parts are computed without pages, and why."""
