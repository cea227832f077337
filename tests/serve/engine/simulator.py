"""A model without tensors, a server without pages or batches, and a driver of the schedule."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf

from addnorm.serve.engine.pages import PagePool
from addnorm.serve.engine.schedule import Schedule, Step
from addnorm.serve.engine.sequence import Ended, Request, Sequence

END = 0


def next_token(tokens: list[int], index: int) -> int:
    """The next token of a text: a hash of all its tokens and of which answer it is."""
    text = f"{index}:{','.join(map(str, tokens))}"
    return blake2b(text.encode(), digest_size=2).digest()[0] % 17


def answers_alone(request: Request) -> list[tuple[list[int], Ended]]:
    """What a server without pages or batches answers: one text after another."""
    answers: list[tuple[list[int], Ended]] = []
    for index in range(request.n):
        tokens, reason = list(request.prompt), None
        while reason is None:
            token = next_token(tokens, index)
            tokens.append(token)
            full = len(tokens) - len(request.prompt) >= request.limit
            reason = "eos" if token == END else "length" if full else None
        answers.append((tokens[len(request.prompt) :], reason))
    return answers


@dataclass
class Paged:
    """A model whose memory is slots of pages: it reads a text back through its table."""

    pool: PagePool
    reach: float = inf
    slots: list[int] = field(default_factory=list[int])

    def __post_init__(self) -> None:
        self.slots = [-1] * (self.pool.n_pages * self.pool.page_size)

    def compute(self, step: Step) -> None:
        """Write the tokens of a step to their slots, and see that each text is read back whole."""
        size = self.pool.page_size
        copied = [
            (c, self.slots[c.source * size : c.source * size + c.n_tokens]) for c in step.copies
        ]
        for copy, tokens in copied:
            self.slots[copy.target * size : copy.target * size + copy.n_tokens] = tokens
        parts = [(sequence, 1 + len(sequence.draft)) for sequence in step.decode]
        for sequence, n in parts if step.chunk is None else [*parts, step.chunk]:
            end, tokens = sequence.computed + n, [*sequence.tokens, *sequence.draft]
            for i in range(sequence.computed, end):
                self.slots[sequence.table.slot(i)] = tokens[i]
            first = max(0, int(sequence.computed - self.reach)) if self.reach < inf else 0
            read = [self.slots[sequence.table.slot(i)] for i in range(first, end)]
            assert read == tokens[first:end]


def run_step(schedule: Schedule, model: Paged) -> list[Sequence]:
    """One step: what is computed, and the next token of each sequence; returns those that ended."""
    schedule.expire()
    step = schedule.next_step()
    model.compute(step)
    schedule.finish(step)
    chunk = () if step.chunk is None else (step.chunk[0],)
    ended: list[Sequence] = []
    for first in (*step.decode, *chunk):
        if first.missing:
            continue
        for sequence in schedule.fork(first) if first.forks else [first]:
            if extended(schedule, sequence):
                ended.append(sequence)
    return ended


def extended(schedule: Schedule, sequence: Sequence) -> bool:
    """Write the next tokens of a sequence, as many as were drafted rightly and one more.

    Returns whether it ended.
    """
    for drafted in (*sequence.draft, None):
        token = next_token(sequence.tokens, sequence.index)
        sequence.tokens.append(token)
        if token == END or sequence.is_full:
            schedule.end(sequence, "eos" if token == END else "length")
            return True
        if token != drafted:
            break
        schedule.accept(sequence)
    schedule.reject(sequence)
    return False


def run(
    schedule: Schedule,
    model: Paged,
    *,
    most: int = 100_000,
    each: Callable[[], None] = lambda: None,
) -> list[Sequence]:
    """Steps until nothing waits or runs; returns the sequences in the order in which they ended."""
    ended: list[Sequence] = []
    for _ in range(most):
        if not (schedule.running or schedule.n_waiting):
            return ended
        ended += run_step(schedule, model)
        each()
    raise AssertionError("the schedule makes no progress")
