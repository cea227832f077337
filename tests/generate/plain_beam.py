"""A reference beam search: one prompt, Python lists and floats, no cache, no pruning."""

import random
from collections.abc import Callable, Sequence
from math import exp, log
from typing import NamedTuple

import torch
from torch import Tensor

from addnorm.generate import BeamConfig

Ids = tuple[int, ...]


class Hypothesis(NamedTuple):
    """Tokens without the one that ended them, the normalised score, and why they ended."""

    ids: Ids
    score: float
    finished: str


def plain_beam_search(
    log_p: Callable[[Ids], Sequence[float]], config: BeamConfig, limit: int, ends: Ids
) -> list[Hypothesis]:
    """The `n_best` best, of all that end within `limit` tokens; `log_p(ids)` is of what follows.

    It closes early only where `early_stopping` asks for that: otherwise every step up to the limit
    is searched, whatever has been found.
    """

    def score(total: float, n: int) -> float:
        length = n if config.normaliser == "length" else (5 + n) / 6
        return total / length**config.length_penalty

    open_: list[tuple[float, Ids]] = [(0.0, ())]
    ended: list[Hypothesis] = []
    for n in range(1, limit + 1):
        every = [
            (total + p, (*ids, token))
            for total, ids in open_
            for token, p in enumerate(log_p(ids))
            if p > float("-inf")
        ]
        every.sort(reverse=True)
        best = every[: config.beams]
        ended += [
            Hypothesis(ids[:-1], score(total, n), "eos") for total, ids in best if ids[-1] in ends
        ]
        if config.unfinished == "ranked" and n == limit:
            unended = [hypothesis for hypothesis in best if hypothesis[1][-1] not in ends]
            ended += [Hypothesis(ids, score(total, n), "length") for total, ids in unended]
        survivors = every if config.width == "constant" else best
        open_ = [(total, ids) for total, ids in survivors if ids[-1] not in ends][: config.beams]
        worst = sorted((h.score for h in ended), reverse=True)[: config.beams][-1:]
        full = len(ended) >= config.beams
        if config.early_stopping is True and full:
            break
        still = [score(total, n) for total, _ in open_[:1]]
        if config.early_stopping is False and full and still <= worst:
            break
    ended.sort(key=lambda h: h.score, reverse=True)
    cut = [Hypothesis(ids, score(total, n), "length") for total, ids in open_]
    if config.unfinished == "ranked":
        cut = []
    return (ended + cut)[: config.n_best]


class Table:
    """A `NextToken` that knows, for every history, random logits in float64.

    Some histories are almost sure of what follows and some are not, so that long hypotheses of
    little cost come after short ones, and a search that gives up too soon misses them.
    """

    def __init__(self, vocab: int, seed: int) -> None:
        self.vocab, self.seed = vocab, seed
        self._known: dict[Ids, list[float]] = {}

    def logits(self, history: Ids) -> list[float]:
        """What comes after these tokens, the prompt's included."""
        if history not in self._known:
            draw = random.Random(f"{self.seed} {history}")
            sharpness = draw.choice([0.3, 1.0, 3.0, 10.0])
            self._known[history] = [draw.gauss(0.0, sharpness) for _ in range(self.vocab)]
        return self._known[history]

    def log_p(self, history: Ids) -> list[float]:
        """Their logarithmic probabilities."""
        logits = self.logits(history)
        whole = log(sum(exp(x) for x in logits))
        return [x - whole for x in logits]

    def remaining_length(self, i: int, prompt: Sequence[int]) -> int:
        return 1000

    def start(self, prompts: Sequence[Sequence[int]]) -> Tensor:
        self.rows = [tuple(prompt) for prompt in prompts]
        return self._read()

    def step(self, tokens: Tensor) -> Tensor:
        self.rows = [(*row, t) for row, t in zip(self.rows, tokens.tolist(), strict=True)]
        return self._read()

    def select(self, rows: Tensor) -> None:
        self.rows = [self.rows[i] for i in rows.tolist()]

    def _read(self) -> Tensor:
        return torch.tensor([self.logits(row) for row in self.rows], dtype=torch.float64)
