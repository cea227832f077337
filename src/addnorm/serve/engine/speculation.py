"""Speculative decoding: tokens are drafted cheaply, then verified by the model in one step.

Leviathan et al. 2023 (arXiv 2211.17192). A step reads the newest token of a sequence and those of
its draft, so that the model's logits after each are there. The next tokens are chosen from them in
order, by the options and the random numbers of the request, for as long as the token chosen is the
drafted one. So a draft changes no answer, and a seed gives the same text with and without.

A step takes longer with more rows; a draft is made as long as it is expected to gain time, by the
share of the drafted tokens that were right and by the measured times of steps.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from math import inf, log
from time import perf_counter
from typing import Protocol, runtime_checkable

from addnorm.serve.engine.choosing import Answer
from addnorm.serve.engine.sequence import Sequence

LONGEST = 16
"""The most tokens of a draft."""

MOST_DRAFTED = 128
"""The most drafted tokens of a step, whose logits are computed."""


@runtime_checkable
class Drafter(Protocol):
    """Guesses the next tokens of sequences."""

    is_free: bool
    """Whether a draft takes next to no time, so that it is made even if it will not be verified."""
    memory: int
    """The bytes that it takes for keys and values."""
    name: str
    """What drafts, for the line that a server prints."""

    def propose(
        self, lengths: Mapping[Sequence, int], answers: Mapping[Sequence, Answer]
    ) -> Mapping[Sequence, tuple[int, ...]]:
        """The drafts for sequences, each at most of the given length.

        `answers` tell how their tokens are chosen, unless the drafter is free.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that has ended."""
        ...


class StepTime:
    """The seconds of a step, fitted as `a + b · rows` by least squares; later steps weigh more.

    Until the steps differ in their rows, a row is expected to take a tenth of its share.
    """

    def __init__(self) -> None:
        self._weight = self._rows = self._seconds = self._rows2 = self._product = 0.0

    def learn(self, rows: int, seconds: float) -> None:
        """Update the estimate with the time of a step."""
        self._weight, self._rows = 0.95 * self._weight + 1.0, 0.95 * self._rows + rows
        self._seconds = 0.95 * self._seconds + seconds
        self._rows2 = 0.95 * self._rows2 + rows**2
        self._product = 0.95 * self._product + rows * seconds

    def cost_of_row(self, rows: int, more: float = 0.0) -> float:
        """The time of one more row, relative to the mean time of each of `rows` rows.

        It takes `more` seconds in addition.
        """
        if not self._weight:
            return 0.1
        mean_rows, mean = self._rows / self._weight, self._seconds / self._weight
        spread = self._rows2 - self._rows * mean_rows
        expected = 0.1 * mean / mean_rows
        slope = (self._product - self._rows * mean + 4.0 * expected) / (spread + 4.0)
        slope = min(max(slope, 0.1 * expected), mean / mean_rows)
        seconds = max(mean + slope * (rows - mean_rows), slope * rows)
        return (slope + more) * rows / seconds


@dataclass
class Acceptance:
    """The share of a sequence's drafted tokens that proved right; later ones weigh more."""

    share: float = 0.5
    n_verified: int = 1

    def learn(self, draft: Items[int], tokens: Items[int]) -> None:
        """Compare a draft with the real tokens, up to the first wrong one."""
        for drafted, token in zip(draft, tokens, strict=False):
            self.n_verified += 1
            self.share += ((drafted == token) - self.share) * max(0.1, 1 / self.n_verified)
            if drafted != token:
                return

    def length(self, cost: float) -> float:
        """The longest draft whose last token is right with probability `cost` or more."""
        if self.share >= 1.0:
            return inf
        return log(min(cost, 1.0)) / log(self.share) if self.share > 0.0 else 0.0


@dataclass
class _Drafted:
    """The record of a sequence's drafts so far."""

    acceptance: Acceptance
    draft: tuple[int, ...] = ()
    length: int = 0
    """The number of tokens before the last draft."""
    skipped: int = 0
    """How many steps had no draft, because none was expected to pay."""
    wait: int = 16
    """After so many of them a draft is tried all the same."""

    def trial(self) -> int:
        """The length of a trial draft that probably does not pay; trials become ever rarer."""
        self.skipped += 1
        if self.skipped < self.wait:
            return 0
        self.skipped, self.wait = 0, min(4 * self.wait, 256)
        return 2


class Speculation:
    """Decides how many tokens to draft for each sequence, and learns what drafts are worth."""

    def __init__(self, drafter: Drafter) -> None:
        self.time = StepTime()
        self._drafter = drafter
        self._seconds = 0.0  # that a token of a draft takes
        self._usual = 0.5  # the share that was right in the sequences that have ended
        self._sequences: dict[Sequence, _Drafted] = {}

    def __str__(self) -> str:
        return f"the next tokens are drafted by {self._drafter.name}, at most {LONGEST} at once"

    def draft(self, running: Items[Sequence], answer: Callable[[Sequence], Answer]) -> None:
        """Give drafts to the sequences that are writing an answer.

        `answer` tells how the tokens of a sequence are chosen.
        """
        writing = [each for each in running if each.missing == 1 and each.has_begun]
        if not writing:
            return
        cost, is_free = self.time.cost_of_row(len(writing), self._seconds), self._drafter.is_free
        room = MOST_DRAFTED
        lengths, wanted = dict[Sequence, int](), dict[Sequence, int]()
        for sequence in writing:
            drafted = self._sequences.setdefault(sequence, self._new())
            drafted.acceptance.learn(drafted.draft, sequence.tokens[drafted.length :])
            drafted.draft, drafted.length, sequence.draft = (), len(sequence.tokens), ()
            most = min(LONGEST, sequence.room - 1)
            length = max(int(min(LONGEST, drafted.acceptance.length(cost))), 0)
            if not (length or is_free):
                length = drafted.trial()
            lengths[sequence] = min(length, most, room)
            room -= lengths[sequence]
            if most > 0 and (is_free or lengths[sequence]):
                wanted[sequence] = most if is_free else lengths[sequence]
        for sequence, draft in self._proposed(wanted, answer).items():
            self._sequences[sequence].draft = draft
            sequence.draft = draft[: lengths[sequence]]

    def _new(self) -> _Drafted:
        """The record for a new sequence, which assumes the usual share of right drafts."""
        return _Drafted(Acceptance(self._usual), wait=round(8 / max(self._usual, 0.05)))

    def _proposed(
        self, lengths: Mapping[Sequence, int], answer: Callable[[Sequence], Answer]
    ) -> Mapping[Sequence, tuple[int, ...]]:
        """The drafts for sequences; the time they take is recorded."""
        if self._drafter.is_free:
            return self._drafter.propose(lengths, {})
        start = perf_counter()
        drafts = self._drafter.propose(lengths, {each: answer(each) for each in lengths})
        if n := sum(map(len, drafts.values())):
            seconds = (perf_counter() - start) / n
            self._seconds += (seconds - self._seconds) * (0.1 if self._seconds else 1.0)
        return drafts

    def forget(self, sequence: Sequence) -> None:
        """Drop the state of a sequence that has ended."""
        if (drafted := self._sequences.pop(sequence, None)) is not None:
            self._usual += 0.2 * (drafted.acceptance.share - self._usual)
        self._drafter.forget(sequence)
