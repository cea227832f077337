"""The definition of decoding: one text at a time, no cache, no batch, nothing closed early."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NextLogP = Callable[[Sequence[int]], Sequence[float]]
"""The log-probability of each token, after the tokens written so far."""


@dataclass(frozen=True)
class Hypothesis:
    """Tokens with their end, and their score."""

    ids: tuple[int, ...]
    score: float
    ended: bool


def greedy(log_p: NextLogP, limit: int, ends: Sequence[int]) -> Hypothesis:
    """The most probable token, again and again; the score is the sum of log p."""
    ids, score = list[int](), 0.0
    while len(ids) < limit and not (ids and ids[-1] in ends):
        row = log_p(ids)
        best = max(range(len(row)), key=lambda token: row[token])
        ids, score = [*ids, best], score + row[best]
    return Hypothesis(tuple(ids), score, ids[-1] in ends)


def beam_search(log_p: NextLogP, config: Any, limit: int, ends: Sequence[int]) -> list[Hypothesis]:
    """The `n_best` best hypotheses: those that ended first, then the unfinished (Wu et al. 2016).

    At each step, of the `beams` best extensions those that end are set aside. Of the others the
    best go on: those among the `beams` best alone where `width` is "shrinking", `beams` of them
    where it is "constant". Where `unfinished` is "ranked", what is cut at the limit counts as
    ended. Where `early_stopping` is true or false, and not "never", it all stops once `beams` have
    ended; if it is false, only when none that goes on is better than all of those at this length.
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
    found = [*sorted(done, key=_score), *sorted(unfinished, key=_score)]
    return found[: config.n_best]


def _extended(log_p: NextLogP, live: Sequence[Hypothesis], ends: Sequence[int]) -> list[Hypothesis]:
    """Every hypothesis with every token after it, the most probable first."""
    every = [
        Hypothesis((*h.ids, token), h.score + p, token in ends)
        for h in live
        for token, p in enumerate(log_p(h.ids))
        if p > -math.inf
    ]
    return sorted(every, key=_score)


def _stops(live: Sequence[Hypothesis], done: Sequence[Hypothesis], config: Any, n: int) -> bool:
    """Whether enough have ended; of many, only the `beams` best count."""
    if config.early_stopping == "never" or len(done) < config.beams:
        return False
    worst = sorted(done, key=_score)[config.beams - 1]
    better = [h for h in live if _normalised(h, config, n).score > worst.score]
    return config.early_stopping is True or not better


def _normalised(h: Hypothesis, config: Any, n: int) -> Hypothesis:
    """`log p / ((5 + n) / 6) ** length_penalty` (Wu et al. 2016, eq. 14), or `/ n **` of it."""
    length = n if config.normaliser == "length" else (5 + n) / 6
    return Hypothesis(h.ids, h.score / length**config.length_penalty, h.ended)


def _score(h: Hypothesis) -> float:
    return -h.score
