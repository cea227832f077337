"""A request, and the sequences that answer it: their tokens, their pages, why they ended."""

from dataclasses import dataclass, field
from typing import Any, Literal

from addnorm.serve.engine.pages import Digest, PageTable

Ended = Literal["eos", "stop", "length", "cancelled", "timeout", "failed"]
"""Why a sequence ended: an end token, a grammar, a limit, its reader, its deadline, or NaN."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A prompt, the number of its answers, and limits on their length and waiting time."""

    name: str
    """Its identifier in results and messages."""
    prompt: tuple[int, ...]
    """The tokens to continue, at least one."""
    limit: int
    """The most new tokens of an answer; with none, the prompt alone is computed."""
    n: int = 1
    """How many answers are sampled; they share the pages of the prompt."""
    priority: int = 0
    """Requests of a higher priority start first; waiting raises it (see `Limits.ageing`)."""
    deadline: float | None = None
    """When the request is given up, in seconds of the schedule's clock."""
    salt: str = ""
    """Pages of common beginnings are shared between requests of the same salt only."""
    shares: bool = True
    """Whether the beginning of its prompt may come from the cache; not if its logits are needed."""
    options: Any = None
    """How tokens are chosen; the schedule does not read it."""


@dataclass(eq=False, slots=True)
class Sequence:
    """One answer: the tokens of the prompt and of the answer, and the pages of their keys.

    The newest token is not in the cache: it is the input of the next step.
    """

    request: Request
    index: int
    """Which of the `n` answers this is."""
    table: PageTable
    tokens: list[int]
    draft: tuple[int, ...] = ()
    """Tokens that may come after the newest one; they are read with it, and then verified."""
    computed: int = 0
    """How many of the tokens are in the cache."""
    cached: int = 0
    """How many of them were there before the sequence was computed first."""
    ended: Ended | None = None
    forks: list["Sequence"] = field(default_factory=list["Sequence"])
    """The other answers of the request, which begin once its prompt is in the cache."""
    digests: list[Digest] = field(default_factory=list[Digest])
    """The digests of the full pages that were published."""

    @property
    def missing(self) -> int:
        """The number of tokens not yet in the cache; one while an answer is written."""
        return len(self.tokens) - self.computed

    @property
    def written(self) -> list[int]:
        """The tokens of the answer so far."""
        return self.tokens[len(self.request.prompt) :]

    @property
    def has_begun(self) -> bool:
        """Whether the answer has a token."""
        return len(self.tokens) > len(self.request.prompt)

    @property
    def room(self) -> int:
        """The number of tokens that the answer may still get."""
        return self.request.limit - (len(self.tokens) - len(self.request.prompt))

    @property
    def is_full(self) -> bool:
        """Whether the answer has reached its length limit."""
        return self.room <= 0
