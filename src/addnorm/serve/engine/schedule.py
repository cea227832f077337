"""The schedule: decides which sequences take part in the model's next step.

Sequences join and leave at every step (Yu et al. 2022, OSDI, section 4.1). A step reads the newest
token of each sequence that is being written, and a chunk of one prompt. When no page is left, the
sequence that joined last is set aside: its pages are released, and it is computed again later.
"""

from bisect import insort
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import ceil, inf
from time import monotonic

from addnorm.serve.engine.pages import Copy, OutOfPages, PagePool, PageTable, digest_after
from addnorm.serve.engine.sequence import Ended, Request, Sequence


class QueueFull(Exception):
    """The queue is full; the next request is expected to start in `retry_after` seconds."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"too many requests wait: try again in {ceil(retry_after)} s")
        self.retry_after = retry_after


class TooLarge(Exception):
    """A request that would not fit even if it were the only one."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits on the work done at once."""

    rows: int = 256
    """The most sequences in a step."""
    chunk: int = 256
    """The most tokens of a prompt in a step."""
    queue: int = 256
    """The most requests that wait."""
    ageing: float = 10.0
    """How many seconds of waiting weigh as much as one step of priority."""
    reach: float = inf
    """How many tokens back any layer attends; the pages of earlier ones are given back."""
    shares: bool = True
    """Whether the pages of common beginnings are shared."""
    alone: bool = False
    """Whether an answer whose keys and values are not in pages is computed alone."""


@dataclass(frozen=True)
class Step:
    """The work of the model's next step, preceded by `copies` between pages.

    Every sequence of `decode` reads its newest token and those of its draft; the sequence of
    `chunk` reads its next `n_tokens`.
    """

    decode: tuple[Sequence, ...] = ()
    chunk: tuple[Sequence, int] | None = None
    copies: tuple[Copy, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.decode) or self.chunk is not None

    @property
    def n_decoded(self) -> int:
        """The number of tokens that the sequences in `decode` read."""
        return sum(1 + len(sequence.draft) for sequence in self.decode)


@dataclass(order=True, slots=True)
class _Place:
    """The rank of a sequence in the queue: by priority, arrival, then number."""

    rank: float
    number: int
    sequence: Sequence = field(compare=False)


class Schedule:
    """The queue of requests and the running sequences, which share a pool of pages."""

    def __init__(
        self, pool: PagePool, limits: Limits | None = None, clock: Callable[[], float] = monotonic
    ) -> None:
        self.pool = pool
        self.limits = limits or Limits()
        self.n_set_aside = 0
        """How often a sequence was set aside."""
        self._clock = clock
        self._numbers = count()
        self._queue: list[_Place] = []
        self._running: list[_Place] = []
        self._ends: deque[float] = deque(maxlen=64)
        self._first_deadline = inf

    @property
    def n_waiting(self) -> int:
        """The number of sequences that wait to start or to be recomputed."""
        return len(self._queue)

    @property
    def capacity(self) -> int:
        """The number of tokens that the pages hold."""
        return self.pool.n_pages * self.pool.page_size

    @property
    def running(self) -> list[Sequence]:
        """The running sequences, in order of joining."""
        return [place.sequence for place in self._running]

    # Requests come and go.

    def add(self, request: Request) -> Sequence:
        """Queue a request; return its first sequence, whose `forks` are the others.

        Raises `TooLarge` for one that the pages or rows never hold, `QueueFull` if too many wait.
        """
        capacity = self.capacity
        needed = len(request.prompt) + max(request.limit, 1) - 1
        if needed > capacity:
            raise TooLarge(
                f"{len(request.prompt)} tokens and {request.limit} new ones: {needed} are kept, "
                f"all but the last, and the memory holds at most {capacity}"
            )
        if request.n > self.limits.rows:
            raise TooLarge(f"n = {request.n}: at most {self.limits.rows} answers at once")
        if len(self._queue) >= self.limits.queue:
            raise QueueFull(self._retry_after())
        sequences = [
            Sequence(request, i, PageTable(self.pool), list(request.prompt))
            for i in range(request.n)
        ]
        sequences[0].forks = sequences[1:]
        rank = self._clock() / self.limits.ageing - request.priority
        insort(self._queue, _Place(rank, next(self._numbers), sequences[0]))
        if request.deadline is not None:
            self._first_deadline = min(self._first_deadline, request.deadline)
        return sequences[0]

    def end(self, sequence: Sequence, reason: Ended) -> None:
        """End a sequence and its unstarted forks, and release its pages."""
        for each in (sequence, *sequence.forks):
            each.ended = reason
        sequence.forks = []
        sequence.table.clear()
        self._running = [place for place in self._running if place.sequence is not sequence]
        self._queue = [place for place in self._queue if place.sequence is not sequence]
        self._ends.append(self._clock())

    def cancel(self, name: str, index: int | None = None) -> list[Sequence]:
        """End all sequences of a request, or the one with this index; return them."""
        if index is None:
            return self._end_all(lambda request: request.name == name, "cancelled")
        for place in (*self._running, *self._queue):
            if place.sequence.request.name == name:
                for sequence in (place.sequence, *place.sequence.forks):
                    if sequence.index == index:
                        self._withdraw(place, sequence)
                        return [sequence]
        return []

    def _withdraw(self, place: _Place, sequence: Sequence) -> None:
        """End one sequence of a place; its prompt is still computed for its forks."""
        first = place.sequence
        if not first.forks:
            self.end(first, "cancelled")
            return
        sequence.ended = "cancelled"
        if sequence is not first:
            first.forks.remove(sequence)
            return
        heir = first.forks.pop(0)
        heir.forks, first.forks = first.forks, []
        heir.table, first.table = first.table, heir.table
        heir.computed, heir.digests, heir.cached = first.computed, first.digests, first.cached
        place.sequence = heir

    def expire(self) -> list[Sequence]:
        """End all sequences of requests whose deadline has passed; return them."""
        now = self._clock()
        if now < self._first_deadline:
            return []
        places = (*self._running, *self._queue)
        deadlines = [place.sequence.request.deadline for place in places]
        later = (each for each in deadlines if each is not None and each > now)
        self._first_deadline = min(later, default=inf)
        return self._end_all(
            lambda request: request.deadline is not None and request.deadline <= now, "timeout"
        )

    def _end_all(self, chosen: Callable[[Request], bool], reason: Ended) -> list[Sequence]:
        first = [
            place.sequence
            for place in (*self._running, *self._queue)
            if chosen(place.sequence.request)
        ]
        every = [each for sequence in first for each in (sequence, *sequence.forks)]
        for sequence in first:
            self.end(sequence, reason)
        return every

    def _retry_after(self) -> float:
        """The mean time between recent ends, but at least one second."""
        if len(self._ends) < 2:
            return 1.0
        return max(1.0, (self._clock() - self._ends[0]) / len(self._ends))

    # Steps.

    def next_step(self) -> Step:
        """Choose the tokens of the next step, and take the pages for them.

        The sequences that joined first are served first, so that the oldest always makes progress.
        """
        decode: list[Sequence] = []
        copies: list[Copy] = []
        for place in list(self._running):
            sequence = place.sequence
            if sequence.missing != 1:
                continue
            if (copied := self._with_room(place)) is None:
                break
            decode.append(sequence)
            copies += copied
        chunk = self._chunk()
        while chunk is None and (joined := self._join()) is not None:
            if joined.missing == 1:
                decode.append(joined)
            else:
                chunk = joined, min(joined.missing, self.limits.chunk)
        return Step(tuple(decode), chunk, tuple(copies))

    def _with_room(self, place: _Place) -> list[Copy] | None:
        """Take the pages for a sequence's next tokens; None if it was preempted for them.

        While too few pages are available, the sequence that joined last is set aside. A draft gets
        pages only while one for each running sequence stays available.
        """
        sequence, table = place.sequence, place.sequence.table
        new = sequence.computed + 1 - table.length
        if sequence.draft:
            needed = table.needed(new + len(sequence.draft)) + len(self._running)
            if needed > self.pool.available:
                sequence.draft = ()
        while True:
            try:
                return table.append(new + len(sequence.draft))
            except OutOfPages:
                last = self._running.pop()
                self._set_aside(last)
                if last is place:
                    return None

    def _set_aside(self, place: _Place) -> None:
        place.sequence.table.clear()
        place.sequence.computed, place.sequence.draft = 0, ()
        place.sequence.digests = []
        insort(self._queue, place)
        self.n_set_aside += 1

    def _chunk(self) -> tuple[Sequence, int] | None:
        """The next tokens of the prompt being read, if any."""
        for place in reversed(self._running):
            if (missing := place.sequence.missing) > 1:
                return place.sequence, min(missing, self.limits.chunk)
        return None

    def _join(self) -> Sequence | None:
        """Start the first sequence in the queue, if rows and pages allow it.

        A page for each running sequence stays available, so that it is not set aside at once.
        Others do not overtake the first, however small they are: it would wait for ever.
        """
        if not self._queue:
            return None
        place = self._queue[0]
        sequence = place.sequence
        rows = sum(1 + len(each.sequence.forks) for each in (*self._running, place))
        if rows > self.limits.rows:
            return None
        sequence.table = PageTable(self.pool, self._shared(sequence))
        sequence.computed = sequence.table.length
        if not sequence.written:
            sequence.cached = sequence.computed
        needed = sequence.table.needed(sequence.missing) + len(self._running)
        if needed > self.pool.available:
            sequence.table.clear()
            sequence.computed, sequence.digests = 0, []
            return None
        sequence.table.append(sequence.missing)
        self._running.append(self._queue.pop(0))
        return sequence

    def _shared(self, sequence: Sequence) -> list[int]:
        """The cached pages of a prefix of the prompt, which leave at least its last token."""
        pages: list[int] = []
        if not (self.limits.shares and sequence.request.shares):
            return pages
        size, salt = self.pool.page_size, sequence.request.salt
        for end in range(size, len(sequence.tokens), size):
            before = sequence.digests[-1] if sequence.digests else salt.encode()
            digest = digest_after(before, sequence.tokens[end - size : end])
            if (page := self.pool.find(digest)) is None:
                break
            pages.append(page)
            sequence.digests.append(digest)
        return pages

    def fork(self, sequence: Sequence) -> list[Sequence]:
        """Start a request's other answers, once its prompt is cached; return all answers."""
        place = next(place for place in self._running if place.sequence is sequence)
        forks, sequence.forks = sequence.forks, []
        for fork in forks:
            fork.table, fork.computed = sequence.table.fork(), sequence.computed
            fork.digests, fork.cached = list(sequence.digests), sequence.cached
            self._running.append(_Place(place.rank, next(self._numbers), fork))
        return [sequence, *forks]

    def finish(self, step: Step) -> None:
        """Update the schedule after a step: publish full pages, release those out of reach."""
        for sequence in step.decode:
            self._computed(sequence, 1)
        if step.chunk is not None:
            self._computed(*step.chunk)

    def accept(self, sequence: Sequence) -> None:
        """Count a drafted token that proved right, and is in the cache already."""
        self._computed(sequence, 1)

    def reject(self, sequence: Sequence) -> None:
        """Release the pages of drafted tokens that proved wrong."""
        sequence.draft = ()
        sequence.table.truncate(sequence.computed)

    def _computed(self, sequence: Sequence, n_tokens: int) -> None:
        sequence.computed += n_tokens
        size = self.pool.page_size
        if self.limits.shares and sequence.computed // size > len(sequence.digests):
            self._publish(sequence)
        if self.limits.reach < inf:
            sequence.table.give_back(sequence.computed - int(self.limits.reach))

    def _publish(self, sequence: Sequence) -> None:
        """Make a sequence's full pages available to later requests."""
        size, salt = self.pool.page_size, sequence.request.salt
        for i in range(len(sequence.digests), sequence.computed // size):
            before = sequence.digests[-1] if sequence.digests else salt.encode()
            digest = digest_after(before, sequence.tokens[i * size : (i + 1) * size])
            sequence.digests.append(digest)
            if (page := sequence.table.pages[i]) is not None:
                self.pool.publish(page, digest)
