"""The lane of batches: requests that arrive together are advanced together, a token at a step.

It answers for every model that writes text, whatever its layers keep of earlier tokens, and for
beam search. Answers that end leave their batch; later requests form another one.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf, isqrt
from typing import Any

import torch
from torch import Tensor

from addnorm.errors import InputError
from addnorm.generate import BeamConfig
from addnorm.generate.beam import BeamSearch
from addnorm.generate.generated import Generated
from addnorm.generate.next_token import Ids, NextToken
from addnorm.generate.rules import Rules
from addnorm.serve.engine.choosing import Chooser, choose, token_scores
from addnorm.serve.engine.events import Event, PromptScores
from addnorm.serve.engine.interruption import Interrupted
from addnorm.serve.engine.schedule import Limits, QueueFull, TooLarge
from addnorm.serve.engine.sequence import Ended, Request


@dataclass(frozen=True, eq=False)
class Search:
    """How the answers of one request are found: by beam search."""

    decoding: BeamConfig
    ends: tuple[int, ...]
    before: tuple[int, ...]
    """The tokens that rules count as the beginning of each answer."""
    limit: int


@dataclass(eq=False, slots=True)
class Row:
    """An answer that is written, or all results of a beam search, with the tokens so far."""

    request: Request
    plan: Chooser | Search
    index: int = 0
    tokens: list[int] = field(default_factory=list[int])

    @property
    def beams(self) -> int:
        """How many rows it has in a batch."""
        return self.plan.decoding.beams if isinstance(self.plan, Search) else 1

    @property
    def n_tokens(self) -> int:
        """How many tokens it keeps in memory at most, those of each beam included."""
        return self.beams * (len(self.request.prompt) + self.plan.limit)

    def event(self, finished: Ended | None, **facts: Any) -> Event:
        """News of the answer."""
        return Event(name=self.request.name, index=self.index, finished=finished, **facts)

    def ended(self, finished: Ended, **facts: Any) -> Iterator[Event]:
        """The end of the answer, or of each result of a beam search."""
        n = self.plan.decoding.n_best if isinstance(self.plan, Search) else 1
        for i in range(n):
            yield replace(self.event(finished, **facts), index=self.index + i)


class SampledBatch:
    """Answers whose tokens are chosen one after another; `near_ties` are those of the last step."""

    def __init__(self, next_token: NextToken, rows: Sequence[Row]) -> None:
        self.rows = list(rows)
        self.near_ties = 0
        self._next_token = next_token
        self._tokens: list[int] = []

    @property
    def begun(self) -> bool:
        """Whether its prompts have been read."""
        return bool(self._tokens)

    def advance(self) -> list[Event]:
        """Choose the next token of each answer. Raises `InputError` if the logits hold NaN."""
        logits = self._logits()
        choosers = [row.plan for row in self.rows if isinstance(row.plan, Chooser)]
        answers = [
            chooser.answer(row.index, row.tokens)
            for chooser, row in zip(choosers, self.rows, strict=True)
        ]
        chosen = choose(logits, answers)
        self.near_ties = chosen.near_ties
        scores = token_scores(logits, chosen.tokens, [each.options for each in choosers])
        events = list[Event]()
        for i, (row, chooser) in enumerate(zip(self.rows, choosers, strict=True)):
            if (error := chosen.failed.get(i)) is not None:
                events.append(row.event("failed", error=error))
                continue
            row.tokens.append(chosen.tokens[i])
            ended, full = chosen.tokens[i] in chooser.choice.ends, len(row.tokens) >= chooser.limit
            finished: Ended | None = "eos" if ended else "length" if full else None
            events.append(row.event(finished, tokens=(chosen.tokens[i],), **scores.get(i, {})))
        self._tokens = chosen.tokens
        self._keep([i for i, event in enumerate(events) if event.finished is None])
        return events

    def _logits(self) -> Tensor:
        """The next-token logits; at the start, after any tokens that are written already."""
        if self._tokens:
            return self._next_token.step(torch.tensor(self._tokens))
        numbers: dict[Ids, int] = {}
        places = [numbers.setdefault(row.request.prompt, len(numbers)) for row in self.rows]
        logits = self._next_token.start([*numbers])
        if len(numbers) < len(places):
            rows = torch.tensor(places)
            self._next_token.select(rows)
            logits = logits[rows]
        for i in range(max(len(row.tokens) for row in self.rows)):
            logits = self._next_token.step(torch.tensor([row.tokens[i] for row in self.rows]))
        return logits

    def _keep(self, places: Sequence[int]) -> None:
        if len(places) == len(self.rows):
            return
        self.rows = [self.rows[i] for i in places]
        if self._tokens and places:
            self._tokens = [self._tokens[i] for i in places]
            self._next_token.select(torch.tensor(places))

    def drop(self, chosen: Callable[[Row], bool]) -> None:
        """Drop the chosen rows."""
        self._keep([i for i, row in enumerate(self.rows) if not chosen(row)])


class SearchedBatch:
    """Requests that are answered by the same kind of beam search."""

    def __init__(self, next_token: NextToken, rows: Sequence[Row]) -> None:
        self.near_ties = 0
        self._next_token = next_token
        self._rows = dict(enumerate(rows))
        self._search: BeamSearch | None = None

    @property
    def rows(self) -> Sequence[Row]:
        """The requests that are open."""
        return [*self._rows.values()]

    @property
    def begun(self) -> bool:
        """Whether its prompts have been read."""
        return self._search is not None

    def advance(self) -> list[Event]:
        """Extend all hypotheses by a token. Raises `InputError` if the logits hold NaN."""
        self._search = self._search or self._started()
        return [
            event
            for i, best in self._search.advance()
            for event in _results(self._rows.pop(i), best)
        ]

    def _started(self) -> BeamSearch:
        self._rows = dict(enumerate(self._rows.values()))
        plans = [row.plan for row in self.rows if isinstance(row.plan, Search)]
        limits, [first, *_] = [plan.limit for plan in plans], plans
        return BeamSearch(
            self._next_token,
            [row.request.prompt for row in self.rows],
            first.decoding,
            limits,
            first.ends,
            Rules.over(first.decoding.rules, [plan.before for plan in plans], limits, first.ends),
        )

    def drop(self, chosen: Callable[[Row], bool]) -> None:
        """Drop the chosen rows."""
        numbers = [i for i, row in self._rows.items() if chosen(row)]
        for i in numbers:
            del self._rows[i]
        if numbers and self._search is not None:
            self._search.drop(numbers)


Batch = SampledBatch | SearchedBatch
"""Answers that are advanced together."""


def _results(row: Row, best: Sequence[Generated]) -> Iterator[Event]:
    """The results of a beam search, best first, and an empty one for each that was not found."""
    for event, result in zip(row.ended("length"), best, strict=False):
        yield replace(event, tokens=result.ids, score=result.score, finished=result.finished)
    yield from [*row.ended("length")][len(best) :]


@dataclass(order=True, slots=True)
class _Place:
    """The place of a request in the queue: by priority and arrival, then by number."""

    rank: float
    number: int
    rows: list[Row] = field(compare=False)


class BatchLane:
    """Requests to a model, in batches of those that arrive together.

    `most_tokens` is how many tokens the memory holds, and `most_scores` how many scores of a query
    against a key, which reading prompts at once takes. `interruptible` lets a check end what the
    model computes, and `score_prompt` computes the scores of a prompt, with a number of most
    probable tokens at each place.
    """

    def __init__(
        self,
        interruptible: Callable[[Callable[[], None]], AbstractContextManager[None]],
        new_next_token: Callable[[], NextToken],
        score_prompt: Callable[[Ids, int], PromptScores],
        limits: Limits,
        clock: Callable[[], float],
        most_tokens: float = inf,
        most_scores: float = inf,
    ) -> None:
        self.most_tokens = most_tokens
        self._most_scores = most_scores
        self._interruptible = interruptible
        self.near_ties = 0
        self._limits = limits
        self._clock = clock
        self._new_next_token = new_next_token
        self._score_prompt = score_prompt
        self._numbers = count()
        self._queue: list[_Place] = []
        self._batches: list[Batch] = []
        self._scores: dict[str, PromptScores] = {}

    def __contains__(self, name: str) -> bool:
        return any(row.request.name == name for row in self._rows)

    def __bool__(self) -> bool:
        return bool(self._queue or self._batches)

    @property
    def n_waiting(self) -> int:
        """How many requests wait."""
        return len(self._queue)

    @property
    def n_running(self) -> int:
        """How many answers are advanced."""
        return sum(len(batch.rows) for batch in self._batches)

    @property
    def _rows(self) -> list[Row]:
        return [row for each in (*self._queue, *self._batches) for row in each.rows]

    def add(self, request: Request, plan: Chooser | Search) -> None:
        """Queue a request.

        Raises `TooLarge` for one that the rows or the memory never hold, `QueueFull` if too many
        wait.
        """
        n = 1 if isinstance(plan, Search) else request.n
        rows = [Row(request, plan, i) for i in range(n)]
        if (beams := sum(row.beams for row in rows)) > self._limits.rows:
            raise TooLarge(f"{beams} answers or beams: at most {self._limits.rows} at once")
        if (n_tokens := sum(row.n_tokens for row in rows)) > self.most_tokens:
            raise TooLarge(
                f"{n_tokens} tokens in all answers and beams: the memory holds at most "
                f"{self.most_tokens:.0f} together"
            )
        if (length := len(request.prompt)) ** 2 > self._most_scores:
            raise TooLarge(
                f"{length} tokens to read at once: the memory holds the attention of at most "
                f"{isqrt(int(self._most_scores))}"
            )
        if len(self._queue) >= self._limits.queue:
            raise QueueFull(1.0)
        rank = self._clock() / self._limits.ageing - request.priority
        for together in [[row] for row in rows] if self._limits.alone else [rows]:
            insort(self._queue, _Place(rank, next(self._numbers), together))

    def cancel(self, name: str, index: int | None = None) -> None:
        """End the answers of a request, or one of them; a beam search ends as a whole."""
        self._drop(lambda row: row.request.name == name and (index is None or index == row.index))

    def _drop(self, chosen: Callable[[Row], bool]) -> list[Row]:
        dropped = [row for row in self._rows if chosen(row)]
        if dropped:
            for place in self._queue:
                place.rows = [row for row in place.rows if not chosen(row)]
            for batch in self._batches:
                batch.drop(chosen)
            self._tidy()
            open_names = {row.request.name for row in self._rows}
            self._scores = {name: s for name, s in self._scores.items() if name in open_names}
        return dropped

    def _tidy(self) -> None:
        self._queue = [place for place in self._queue if place.rows]
        self._batches = [batch for batch in self._batches if batch.rows]

    def step(self, look_up: Callable[[], None] = lambda: None) -> list[Event]:
        """Start the batches that fit, and advance each by a token; return the news.

        While prompts are read, `look_up` is called between layers; it may add and cancel requests.
        """
        events = [event for row in self._drop(self._late()) for event in row.ended("timeout")]
        events += self._start(self._joining())
        for batch in [*self._batches]:
            events += self._advanced(batch, look_up)
        self._tidy()
        return [self._with_scores(event) for event in events]

    def _late(self) -> Callable[[Row], bool]:
        """Whether the deadline of a row has passed by now."""
        now = self._clock()
        return lambda row: row.request.deadline is not None and row.request.deadline <= now

    def _joining(self) -> list[Row]:
        """Take the first requests of the queue that the rows and the memory have room for."""
        rows = [row for batch in self._batches for row in batch.rows]
        n_running = len(rows)
        while self._queue:
            more = [*rows, *self._queue[0].rows]
            if (rows and self._limits.alone) or sum(row.beams for row in more) > self._limits.rows:
                break
            if sum(row.n_tokens for row in more) > self.most_tokens:
                break
            if not self._reads_at_once(more[n_running:]) and len(rows) > n_running:
                break
            rows = more
            del self._queue[0]
        return rows[n_running:]

    def _reads_at_once(self, rows: Sequence[Row]) -> bool:
        """Whether the memory holds the scores of the prompts of all rows, padded, together."""
        prompts = {row.request.prompt for row in rows}
        longest = max((len(prompt) for prompt in prompts), default=0)
        return len(prompts) * longest**2 <= self._most_scores

    def _start(self, rows: Sequence[Row]) -> list[Event]:
        """Start a batch of all rows whose tokens are chosen, and one of each kind of search."""
        firsts = [row for row in rows if row.index == 0 or not self._limits.alone]
        for row in firsts:
            if isinstance(row.plan, Chooser) and row.plan.options.prompt_log_probs:
                prompt, n_best = row.request.prompt, row.plan.options.log_probs or 0
                self._scores[row.request.name] = self._score_prompt(prompt, n_best)
        groups: dict[tuple[BeamConfig, tuple[int, ...]] | None, list[Row]] = {}
        for row in rows:
            if row.plan.limit:
                plan = row.plan
                kind = (plan.decoding, plan.ends) if isinstance(plan, Search) else None
                groups.setdefault(kind, []).append(row)
        self._batches += [self._batch(group) for group in groups.values()]
        return [event for row in rows if not row.plan.limit for event in row.ended("length")]

    def _batch(self, rows: Sequence[Row]) -> Batch:
        kind = SearchedBatch if isinstance(rows[0].plan, Search) else SampledBatch
        return kind(self._new_next_token(), rows)

    def _advanced(self, batch: Batch, look_up: Callable[[], None]) -> list[Event]:
        """Advance a batch; if that fails, its answers are continued one by one, to find which.

        If one of its requests ends while their prompts are read, the others are begun again.
        """
        try:
            with nullcontext() if batch.begun else self._while_wanted(batch, look_up):
                events = batch.advance()
            self.near_ties += batch.near_ties
            return events
        except Interrupted:
            rest = [self._batch(batch.rows)] if batch.rows else []
            self._batches = [each for each in self._batches if each is not batch] + rest
            return []
        except InputError as error:
            self._batches.remove(batch)
            if len(batch.rows) == 1:
                return [*batch.rows[0].ended("failed", error=str(error))]
            self._batches += [self._batch([row]) for row in batch.rows]
            return []

    def _while_wanted(
        self, batch: Batch, look_up: Callable[[], None]
    ) -> AbstractContextManager[None]:
        """Interrupt what the model computes as soon as a request of the batch ends."""
        rows = [*batch.rows]

        def check() -> None:
            look_up()
            if len(batch.rows) < len(rows) or any(map(self._late(), rows)):
                raise Interrupted

        return self._interruptible(check)

    def _with_scores(self, event: Event) -> Event:
        """An event; the first of its request has the scores of the prompt."""
        scores = self._scores.pop(event.name, None)
        return event if scores is None else replace(event, prompt=scores)
