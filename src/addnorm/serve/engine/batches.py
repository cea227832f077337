"""The batch lane: for any model that writes text, rows join and leave at each step.

It answers for encoder–decoders, recurrent mixers and custom caches, and for beam search.
The prompts of new requests are read as a batch of their own, which then joins the running one.
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
from addnorm.generate.next_token import Ids
from addnorm.generate.rules import Rules
from addnorm.serve.engine.choosing import Chooser, choose, token_scores
from addnorm.serve.engine.events import Event, PromptScores
from addnorm.serve.engine.interruption import Interrupted, interruptible
from addnorm.serve.engine.rows import Rows
from addnorm.serve.engine.schedule import Limits, QueueFull, TooLarge
from addnorm.serve.engine.sequence import Ended, Request
from addnorm.serve.engine.slots import RowBuffers

FEW = 8
"""New rows are few if there are more than so many times more that run already."""

LONGEST_WAIT = 4
"""For how many steps at most a few new rows wait for others, so that they begin together."""


@dataclass(frozen=True, eq=False)
class Search:
    """The beam search that finds the answers of one request."""

    decoding: BeamConfig
    ends: tuple[int, ...]
    before: tuple[int, ...]
    """The tokens that rules count as the beginning of each answer."""
    limit: int


@dataclass(eq=False, slots=True)
class Row:
    """An answer with its tokens so far, or all results of a beam search."""

    request: Request
    plan: Chooser | Search
    index: int = 0
    tokens: list[int] = field(default_factory=list[int])

    @property
    def beams(self) -> int:
        """The number of rows that it takes in a batch."""
        return self.plan.decoding.beams if isinstance(self.plan, Search) else 1

    @property
    def n_tokens(self) -> int:
        """The most tokens that it may store; beams share the prompt's."""
        return len(self.request.prompt) + self.beams * self.plan.limit

    def event(self, finished: Ended | None, **facts: Any) -> Event:
        """An event with news of the answer."""
        return Event(name=self.request.name, index=self.index, finished=finished, **facts)

    def ended(self, finished: Ended, **facts: Any) -> Iterator[Event]:
        """The events that end the answer, or each result of a beam search."""
        n = self.plan.decoding.n_best if isinstance(self.plan, Search) else 1
        for i in range(n):
            yield replace(self.event(finished, **facts), index=self.index + i)


class SampledBatch:
    """Answers whose tokens are chosen one at a time; `near_ties` are those of the last step."""

    kind = None

    def __init__(self, rows: Sequence[Row], buffers: RowBuffers) -> None:
        self.rows = list(rows)
        self.near_ties = 0
        self.next_token = Rows(buffers)
        self._tokens: list[int] = []

    @property
    def begun(self) -> bool:
        """Whether the batch's prompts have been read."""
        return bool(self._tokens)

    def advance(self) -> list[Event]:
        """Choose the next token of each answer."""
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
            is_full = len(row.tokens) >= chooser.limit
            finished = answers[i].end_by(chosen.tokens[i], is_full=is_full)
            events.append(row.event(finished, tokens=(chosen.tokens[i],), **scores.get(i, {})))
        self._tokens = chosen.tokens
        self._keep([i for i, event in enumerate(events) if event.finished is None])
        return events

    def _logits(self) -> Tensor:
        """The next-token logits of each answer."""
        if self._tokens:
            return self.next_token.step(torch.tensor(self._tokens, device=self._device))
        numbers: dict[Ids, int] = {}
        places = [numbers.setdefault(row.request.prompt, len(numbers)) for row in self.rows]
        logits = self.next_token.start([*numbers])
        if len(numbers) == len(places):
            return logits
        rows = torch.tensor(places, device=self._device)
        self.next_token.select(rows)
        return logits[rows]

    @property
    def _device(self) -> torch.device:
        return self.next_token.buffers.device

    def _keep(self, places: Sequence[int]) -> None:
        if len(places) == len(self.rows):
            return
        self.rows = [self.rows[i] for i in places]
        if self._tokens and places:
            self._tokens = [self._tokens[i] for i in places]
            self.next_token.select(torch.tensor(places, device=self._device))

    def drop(self, chosen: Callable[[Row], bool]) -> None:
        """Drop the chosen rows."""
        self._keep([i for i, row in enumerate(self.rows) if not chosen(row)])

    def join(self, other: "SampledBatch") -> None:
        """Add the answers of another batch."""
        self.next_token.join(other.next_token)
        self.rows += other.rows
        self._tokens += other._tokens


class SearchedBatch:
    """Requests that are answered by the same kind of beam search."""

    near_ties = 0

    def __init__(self, rows: Sequence[Row], buffers: RowBuffers) -> None:
        self.next_token = Rows(buffers)
        self._rows = dict(enumerate(rows))
        self._search: BeamSearch | None = None

    @property
    def kind(self) -> tuple[BeamConfig, tuple[int, ...], int]:
        """The settings that searches must share to advance together."""
        plan = self.rows[0].plan
        assert isinstance(plan, Search)
        return plan.decoding, plan.ends, 0 if self._search is None else self._search.width

    @property
    def rows(self) -> Sequence[Row]:
        """The open requests."""
        return [*self._rows.values()]

    @property
    def begun(self) -> bool:
        """Whether the batch's prompts have been read."""
        return self._search is not None

    def advance(self) -> list[Event]:
        """Extend all hypotheses by one token."""
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
            self.next_token,
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

    def join(self, other: "SearchedBatch") -> None:
        """Add the searches of another batch."""
        assert self._search is not None
        assert other._search is not None
        self.next_token.join(other.next_token)
        first = self._search.join(other._search)
        self._rows |= {first + i: row for i, row in other._rows.items()}


Batch = SampledBatch | SearchedBatch
"""Answers that are advanced together."""


def _joined(batches: Sequence[Batch]) -> list[Batch]:
    """The batches, merged where they can advance together."""
    fewer = list[Batch]()
    for batch in batches:
        if not any(_joins(batch, earlier) for earlier in fewer):
            fewer.append(batch)
    return fewer


def _joins(batch: Batch, earlier: Batch) -> bool:
    """Merge a batch into an earlier one, if their kinds agree and their lengths fit."""
    if batch.kind != earlier.kind or not (batch.begun and earlier.begun):
        return False
    if not earlier.next_token.fits(batch.next_token):
        return False
    match earlier, batch:
        case SampledBatch(), SampledBatch():
            earlier.join(batch)
        case SearchedBatch(), SearchedBatch():
            earlier.join(batch)
        case _:
            return False
    return True


def _results(row: Row, best: Sequence[Generated] | InputError) -> Iterator[Event]:
    """The results of a beam search, best first; empty ones stand for missing results."""
    if isinstance(best, InputError):
        yield from row.ended("failed", error=str(best))
        return
    for event, result in zip(row.ended("length"), best, strict=False):
        yield replace(event, tokens=result.ids, score=result.score, finished=result.finished)
    yield from [*row.ended("length")][len(best) :]


@dataclass(order=True, slots=True)
class _Place:
    """The rank of a request in the queue: by priority, arrival, then number."""

    rank: float
    number: int
    rows: list[Row] = field(compare=False)


class BatchLane:
    """Requests to a model that join and leave its batches at any step.

    `most_tokens` is how many tokens the buffers of the rows hold, and `most_scores` how many scores
    of a query against a key memory holds while prompts are read. Unless the model `joins`, each
    request is a batch of its own. `score_prompt` computes the scores of a prompt, with a number of
    most probable tokens at each place.
    """

    def __init__(
        self,
        buffers: RowBuffers,
        score_prompt: Callable[[Ids, int], PromptScores],
        limits: Limits,
        clock: Callable[[], float],
        *,
        most_scores: float = inf,
        joins: bool = True,
    ) -> None:
        self.near_ties = 0
        self.most_tokens = buffers.padding
        self._buffers = buffers
        self._most_scores = most_scores
        self._joins = joins
        self._limits = limits
        self._clock = clock
        self._score_prompt = score_prompt
        self._numbers = count()
        self._queue: list[_Place] = []
        self._batches: list[Batch] = []
        self._scores: dict[str, PromptScores] = {}
        self._waited = 0  # how many steps requests have waited that could have been started

    def __contains__(self, name: str) -> bool:
        return any(row.request.name == name for row in self._rows)

    def __bool__(self) -> bool:
        return bool(self._queue or self._batches)

    @property
    def n_waiting(self) -> int:
        """The number of waiting requests."""
        return len(self._queue)

    @property
    def n_running(self) -> int:
        """The number of answers in progress."""
        return sum(len(batch.rows) for batch in self._batches)

    @property
    def n_slots_used(self) -> int:
        """The number of tokens, of texts and sources, whose keys and values are stored."""
        return self._buffers.n_used

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
                f"{self.most_tokens} together"
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
        """End a request's answers, or one of them; a beam search ends as a whole."""
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
        """Start the requests that fit, and advance all by one token; return the news.

        While prompts are read, `look_up` is called between layers; it may add and cancel requests.
        """
        events = [event for row in self._drop(self._late()) for event in row.ended("timeout")]
        events += self._start(self._joining())
        for batch in [*self._batches]:
            events += self._advanced(batch, look_up)
        self._tidy()
        if self._joins:
            self._batches = _joined(self._batches)
        return [self._with_scores(event) for event in events]

    def _late(self) -> Callable[[Row], bool]:
        """Whether the deadline of a row has passed."""
        now = self._clock()
        return lambda row: row.request.deadline is not None and row.request.deadline <= now

    def _joining(self) -> list[Row]:
        """Take requests from the front of the queue, as far as rows and memory allow.

        To read prompts costs about as much as a step, so a few rows wait some steps for others.
        """
        running = [row for batch in self._batches for row in batch.rows]
        n = self._n_fitting(running)
        rows = [row for place in self._queue[:n] for row in place.rows]
        if len(rows) < len(running) / FEW and self._waited < LONGEST_WAIT:
            self._waited += bool(rows)
            return []
        self._waited = 0
        del self._queue[:n]
        return rows

    def _n_fitting(self, running: Sequence[Row]) -> int:
        """The number of requests at the front of the queue that fit with the running rows."""
        rows = [*running]
        for n, place in enumerate(self._queue):
            rows += place.rows
            n_beams, n_tokens = sum(row.beams for row in rows), sum(row.n_tokens for row in rows)
            if n_beams > self._limits.rows or n_tokens > self.most_tokens:
                return n
            if n and not self._reads_at_once(rows[len(running) :]):
                return n
            if len(rows) > len(place.rows) and self._limits.alone:
                return n
        return len(self._queue)

    def _reads_at_once(self, rows: Sequence[Row]) -> bool:
        """Whether the rows' prompts, with padding, are short enough for one step."""
        prompts = {row.request.prompt for row in rows}
        longest = max((len(prompt) for prompt in prompts), default=0)
        n_tokens = len(prompts) * longest
        return n_tokens <= self._limits.chunk and n_tokens * longest <= self._most_scores

    def _start(self, rows: Sequence[Row]) -> list[Event]:
        """Start one batch of all sampled rows, and one for each kind of beam search."""
        firsts = [row for row in rows if row.index == 0 or not self._limits.alone]
        for row in firsts:
            if isinstance(row.plan, Chooser) and row.plan.options.prompt_log_probs:
                prompt, n_best = row.request.prompt, row.plan.options.log_probs or 0
                self._scores[row.request.name] = self._score_prompt(prompt, n_best)
        groups: dict[Any, list[Row]] = {}
        for row in rows:
            if row.plan.limit:
                plan = row.plan
                kind = (plan.decoding, plan.ends) if isinstance(plan, Search) else None
                alone = None if self._joins else row.request.name
                groups.setdefault((kind, alone), []).append(row)
        self._batches += [self._batch(group) for group in groups.values()]
        return [event for row in rows if not row.plan.limit for event in row.ended("length")]

    def _batch(self, rows: Sequence[Row]) -> Batch:
        kind = SearchedBatch if isinstance(rows[0].plan, Search) else SampledBatch
        return kind(rows, self._buffers)

    def _advanced(self, batch: Batch, look_up: Callable[[], None]) -> list[Event]:
        """Advance a batch.

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

    def _while_wanted(
        self, batch: Batch, look_up: Callable[[], None]
    ) -> AbstractContextManager[None]:
        """In this context, interrupt the computation once a request of the batch ends."""
        rows = [*batch.rows]

        def check() -> None:
            look_up()
            if len(batch.rows) < len(rows) or any(map(self._late(), rows)):
                raise Interrupted

        return interruptible(self._buffers.next_token.model, check)

    def _with_scores(self, event: Event) -> Event:
        """An event; a request's first one also has the scores of the prompt."""
        scores = self._scores.pop(event.name, None)
        return event if scores is None else replace(event, prompt=scores)
