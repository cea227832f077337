"""The definition of decoding: one text at a time, without cache, batching or early closing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NextLogP = Callable[[Sequence[int]], Sequence[float]]
"""A function from the tokens so far to the log-probability of each next token."""


@dataclass(frozen=True)
class Hypothesis:
    """The tokens of a hypothesis, including the end token, and its score."""

    ids: tuple[int, ...]
    score: float
    ended: bool


def greedy(log_p: NextLogP, limit: int, ends: Sequence[int]) -> Hypothesis:
    """Greedy search: the most probable token at each step; the score is the sum of log p."""
    ids, score = list[int](), 0.0
    while len(ids) < limit and not (ids and ids[-1] in ends):
        row = log_p(ids)
        best = max(range(len(row)), key=lambda token: row[token])
        ids, score = [*ids, best], score + row[best]
    return Hypothesis(tuple(ids), score, ids[-1] in ends)


def beam_search(log_p: NextLogP, config: Any, limit: int, ends: Sequence[int]) -> list[Hypothesis]:
    """The `n_best` best hypotheses, finished ones before unfinished ones (Wu et al. 2016).

    At each step, those of the `beams` best extensions that end are set aside. The best of the
    others are extended further: only those among the `beams` best if `width` is "shrinking",
    `beams` of them if it is "constant". If `unfinished` is "ranked", hypotheses cut at the limit
    count as finished. If `early_stopping` is true, the search stops once `beams` hypotheses have
    ended; if it is false, only when also no live hypothesis scores better at the current length
    than the worst of these.
    """
    live, done, n = [Hypothesis((), 0.0, False)], list[Hypothesis](), 0
    for n in range(1, limit + 1):
        extended = _extended(log_p, live, ends)
        done += [_normalised(h, config, n) for h in extended[: config.beams] if h.ended]
        seen = extended[: config.beams] if config.width == "shrinking" else extended
        live = [h for h in seen if not h.ended][: config.beams]
        if config.unfinished == "ranked" and n == limit:
            cut = [h for h in extended[: config.beams] if not h.ended]
            done, live = [*done, *(_normalised(h, config, n) for h in cut)], []
        if _stops(live, done, config, n):
            break
    unfinished = [] if config.unfinished == "ranked" else [_normalised(h, config, n) for h in live]
    ranked = [*sorted(done, key=_score), *sorted(unfinished, key=_score)]
    return ranked[: config.n_best]


def _extended(log_p: NextLogP, live: Sequence[Hypothesis], ends: Sequence[int]) -> list[Hypothesis]:
    """All one-token extensions of the hypotheses, most probable first."""
    every = [
        Hypothesis((*h.ids, token), h.score + p, token in ends)
        for h in live
        for token, p in enumerate(log_p(h.ids))
        if p > -math.inf
    ]
    return sorted(every, key=_score)


def _stops(live: Sequence[Hypothesis], done: Sequence[Hypothesis], config: Any, n: int) -> bool:
    """Whether the search stops; only the `beams` best finished hypotheses count."""
    if config.early_stopping == "never" or len(done) < config.beams:
        return False
    worst = sorted(done, key=_score)[config.beams - 1]
    better = [h for h in live if _normalised(h, config, n).score > worst.score]
    return config.early_stopping is True or not better


def _normalised(h: Hypothesis, config: Any, n: int) -> Hypothesis:
    """`log p / ((5 + n) / 6) ** length_penalty` (Wu et al. 2016, eq. 14), or with base `n`."""
    length = n if config.normaliser == "length" else (5 + n) / 6
    return Hypothesis(h.ids, h.score / length**config.length_penalty, h.ended)


def _score(h: Hypothesis) -> float:
    return -h.score
