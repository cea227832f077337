"""The paged lane: sequences with attention over pages join and leave a batch at every step."""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

import torch

from addnorm.generate.next_token import device_of, evaluating
from addnorm.models import DecoderModel, EncoderDecoderModel
from addnorm.nn.attention import CrossLayerAttention, LatentAttention, SelfAttention
from addnorm.nn.cache import KVCache, NoCache, SelfCache
from addnorm.nn.no_sublayer import NoMixer
from addnorm.nn.positions.position import Position
from addnorm.serve.engine.choosing import Answer, Chooser, Logits, choose, reported, token_scores
from addnorm.serve.engine.decoder import PagedDecoder
from addnorm.serve.engine.events import Best, Event, PromptScores
from addnorm.serve.engine.schedule import Limits, Schedule, Step
from addnorm.serve.engine.sequence import Ended, Request, Sequence
from addnorm.serve.engine.speculation import Speculation


def why_not_paged(model: DecoderModel | EncoderDecoderModel) -> str | None:
    """Why a model's keys and values cannot be stored in pages; None if they can.

    Pages hold what depends on earlier tokens alone, so that a prompt may be read in chunks, shared
    and computed again.
    """
    if isinstance(model, EncoderDecoderModel):
        return "its decoder attends to an encoder"
    for i, mixer in enumerate(model.stack.mixers):
        if isinstance(mixer, NoMixer):
            continue
        if not isinstance(mixer, SelfAttention | LatentAttention | CrossLayerAttention):
            return f"layer {i} is not attention but {type(mixer).__name__}, which keeps a state"
        if type(mixer.new_cache()) not in (SelfCache, NoCache):
            return f"layer {i} has a cache of its own"
        if type(mixer.position).rotate_all is not Position.rotate_all:
            return f"{type(mixer.position).__name__} positions rotate old keys by later tokens"
    return None


def reach_of(model: DecoderModel) -> float:
    """The largest number of tokens back that any layer attends; earlier pages can be released."""
    return max((mask.reach[0] for mask in model.stack.patterns), default=0)


def bytes_per_token(model: DecoderModel) -> int:
    """The bytes of a token's keys and values in all layers."""
    cache: KVCache = model.new_cache()
    with torch.inference_mode(), evaluating(model):
        model(torch.zeros(1, 1, dtype=torch.long, device=device_of(model)), cache=cache)
    caches = [layer.self_cache for layer in cache]
    return sum(part.nbytes for each in caches if isinstance(each, SelfCache) for part in each.kept)


@dataclass
class _News:
    """The additions of one step to an answer."""

    tokens: list[int] = field(default_factory=list[int])
    log_probs: list[float] = field(default_factory=list[float])
    best: list[Best] = field(default_factory=list[Best])
    finished: Ended | None = None
    error: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The fields of an event."""
        values = {"tokens": self.tokens, "log_probs": self.log_probs, "best": self.best}
        return {**{name: tuple(value) for name, value in values.items()}, "error": self.error}


@dataclass
class _Open:
    """A request with open answers, and the facts that are reported once for all of them."""

    chooser: Chooser
    answers: int
    """How many of its answers are open."""
    prompt: list[tuple[float, Best]] = field(default_factory=list[tuple[float, Best]])
    """The scores of its prompt, as far as it has been computed."""
    begun: bool = False
    """Whether an event of it was reported already."""

    @property
    def scores_prompt(self) -> bool:
        """Whether the prompt's scores are still to be reported."""
        return self.chooser.options.prompt_log_probs and not self.begun

    def prompt_scores(self) -> PromptScores | None:
        """The prompt's scores for the request's first event; None for later ones."""
        if not self.scores_prompt:
            return None
        log_probs, best = zip(*self.prompt, strict=True) if self.prompt else ((), ())
        return PromptScores(log_probs, best)


class PagedLane:
    """Requests to a decoder whose keys and values are in pages."""

    def __init__(self, decoder: PagedDecoder, limits: Limits, clock: Callable[[], float]) -> None:
        self.schedule = Schedule(decoder.pool, limits, clock)
        self.near_ties = self.n_drafted = self.n_accepted = 0
        self.speculation: Speculation | None = None
        """How the next tokens are drafted; None is not at all."""
        self._decoder = decoder
        self._open: dict[str, _Open] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._open

    def __bool__(self) -> bool:
        return bool(self._open)

    def add(self, request: Request, chooser: Chooser) -> None:
        """Queue a request. Raises `TooLarge` and `QueueFull` as the schedule does."""
        self.schedule.add(replace(request, shares=not chooser.options.prompt_log_probs))
        self._open[request.name] = _Open(chooser, request.n)

    def cancel(self, name: str, index: int | None = None) -> None:
        """End a request's answers, or one of them; they cause no more events."""
        for sequence in self.schedule.cancel(name, index):
            self._closed(sequence)

    def step(self) -> list[Event]:
        """Compute one step; return the new tokens and ends."""
        events = list[Event]()
        for sequence in self.schedule.expire():
            self._closed(sequence)
            events.append(
                Event(name=sequence.request.name, index=sequence.index, finished="timeout")
            )
        if self.speculation is not None:
            self.speculation.draft(self.schedule.running, self._answer)
        if step := self.schedule.next_step():
            start, n_decoded = perf_counter(), step.n_decoded
            events += self._computed(step)
            if self.speculation is not None and step.chunk is None:
                self.speculation.time.learn(n_decoded, perf_counter() - start)
        return events

    def _closed(self, sequence: Sequence) -> None:
        if self.speculation is not None:
            self.speculation.forget(sequence)
        request = self._open[sequence.request.name]
        request.answers -= 1
        if not request.answers:
            del self._open[sequence.request.name]

    def _computed(self, step: Step) -> list[Event]:
        """Compute a step, and extend the sequences whose tokens are all in the cache."""
        chunk = step.chunk
        scored = chunk is not None and self._open[chunk[0].request.name].scores_prompt
        logits = self._decoder.compute(step, every=scored)
        if chunk is not None and scored:
            self._score_prompt(chunk[0], logits[step.n_decoded :])
        self.n_drafted += step.n_decoded - len(step.decode)
        self.schedule.finish(step)
        ready = [
            (row, sequence)
            for row, first in _last_rows(step)
            if not first.missing
            for sequence in (self.schedule.fork(first) if first.forks else [first])
        ]
        events = [self._ended(sequence, "length") for _, sequence in ready if sequence.is_full]
        ready = [(row, sequence) for row, sequence in ready if sequence.ended is None]
        return events + (self._extended(logits, ready) if ready else [])

    def _score_prompt(self, sequence: Sequence, logits: Logits) -> None:
        """Record the scores of the prompt tokens that follow those of the chunk."""
        request = self._open[sequence.request.name]
        first = sequence.computed
        targets = sequence.request.prompt[first + 1 : first + 1 + len(logits)]
        del request.prompt[first:]
        if targets:
            n_best = request.chooser.options.log_probs or 0
            request.prompt += zip(*reported(logits[: len(targets)], targets, n_best), strict=True)

    def _extended(self, logits: Logits, ready: Items[tuple[int, Sequence]]) -> list[Event]:
        """Choose the next tokens of each sequence, from its row of the logits on.

        After a token that was drafted, the next row has the logits of the token after that.
        """
        news = {sequence: _News() for _, sequence in ready}
        while ready:
            self._choose(logits, ready, news)
            ready = [(row + 1, each) for row, each in ready if self._was_drafted(each, news[each])]
        return [self._reported(sequence, added) for sequence, added in news.items()]

    def _choose(
        self,
        logits: Logits,
        ready: Items[tuple[int, Sequence]],
        news: Mapping[Sequence, _News],
    ) -> None:
        """Choose the next token of each sequence from the sequence's row of the logits."""
        logits = logits[[row for row, _ in ready]]
        answers = [self._answer(sequence) for _, sequence in ready]
        chosen = choose(logits, answers)
        self.near_ties += chosen.near_ties
        scores = token_scores(logits, chosen.tokens, [answer.chooser.options for answer in answers])
        for i, ((_, sequence), answer) in enumerate(zip(ready, answers, strict=True)):
            added = news[sequence]
            if (error := chosen.failed.get(i)) is not None:
                added.finished, added.error = "failed", error
                continue
            token = chosen.tokens[i]
            sequence.tokens.append(token)
            added.tokens.append(token)
            if i in scores:
                added.log_probs += scores[i]["log_probs"]
                added.best += scores[i]["best"]
            added.finished = answer.end_by(token, is_full=sequence.is_full)

    def _answer(self, sequence: Sequence) -> Answer:
        """The answer that a sequence writes."""
        chooser = self._open[sequence.request.name].chooser
        return chooser.answer(sequence.index, sequence.written)

    def _was_drafted(self, sequence: Sequence, added: _News) -> bool:
        """Whether the newest token equals the drafted one, whose next logits are known."""
        place = len(added.tokens) - 1
        drafted = sequence.draft[place : place + 1]
        if added.finished is not None or drafted != (sequence.tokens[-1],):
            return False
        self.schedule.accept(sequence)
        self.n_accepted += 1
        return True

    def _reported(self, sequence: Sequence, added: _News) -> Event:
        """An event with the news of a sequence."""
        if added.finished is not None:
            return self._ended(sequence, added.finished, **added.facts)
        if sequence.draft:
            self.schedule.reject(sequence)
        return self._event(sequence, None, **added.facts)

    def _event(self, sequence: Sequence, finished: Ended | None, **facts: Any) -> Event:
        """An event for a sequence; a request's first one also has the prompt's scores."""
        request = self._open[sequence.request.name]
        scores, request.begun = request.prompt_scores(), True
        return Event(
            name=sequence.request.name,
            index=sequence.index,
            finished=finished,
            prompt=scores,
            cached=sequence.cached,
            **facts,
        )

    def _ended(self, sequence: Sequence, finished: Ended, **facts: Any) -> Event:
        """The last event of a sequence, whose pages are released."""
        event = self._event(sequence, finished, **facts)
        self.schedule.end(sequence, finished)
        self._closed(sequence)
        return event


def _last_rows(step: Step) -> Iterator[tuple[int, Sequence]]:
    """For each sequence of a step, the row of the logits after its last real token."""
    row = 0
    for sequence in step.decode:
        yield row, sequence
        row += 1 + len(sequence.draft)
    if step.chunk is not None:
        yield -1, step.chunk[0]
