"""Choosing the next token from logits: filters, sampling, and their configurations."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import inf, log
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from addnorm.config import config
from addnorm.errors import InputError
from addnorm.generate.rules import NO_RULES, RulesConfig


def temperature(logits: Float[Tensor, "rows vocab"], value: float) -> Float[Tensor, "rows vocab"]:
    """Flatten (`value` > 1) or sharpen (`value` < 1) the distribution: `(z - max z) / value`.

    The largest logit becomes 0, which leaves the softmax unchanged and avoids overflow for a tiny
    `value`; one that the type of the logits rounds to 0 is its smallest normal number. Logits of
    -inf stay -inf.
    """
    limits = torch.finfo(logits.dtype)
    best = logits.amax(-1, keepdim=True).clamp(min=limits.min)
    return (logits - best) / max(value, limits.tiny)


def top_k(logits: Float[Tensor, "rows vocab"], k: int) -> Float[Tensor, "rows vocab"]:
    """Keep the `k` largest logits and any that tie with the last of them; the rest become -inf.

    A `k` beyond the vocabulary keeps everything. Fan et al. 2018 (arXiv 1805.04833), section 5.
    """
    if k >= logits.shape[-1]:
        return logits
    return _at_least(logits, logits.topk(k).values[:, -1:])


def top_p(logits: Float[Tensor, "rows vocab"], p: float) -> Float[Tensor, "rows vocab"]:
    """Keep the smallest set of most probable tokens whose mass reaches `p`, and ties with the last.

    `p = 1` keeps everything, exactly. Holtzman et al. 2020 (arXiv 1904.09751), section 3.1.
    """
    if p >= 1.0:
        return logits
    ordered = logits.sort(dim=-1, descending=True).values
    mass = ordered.softmax(-1, dtype=torch.float64).cumsum(-1)
    enough = torch.cat([torch.zeros_like(mass[:, :1]), mass[:, :-1]], dim=-1) >= p
    enough[:, 1:] |= mass[:, :-1].isnan()  # a row of only -inf stays as it is
    return _at_least(logits, ordered.masked_fill(enough, inf).amin(-1, keepdim=True))


def min_p(logits: Float[Tensor, "rows vocab"], p: float) -> Float[Tensor, "rows vocab"]:
    """Keep the tokens at least `p` times as probable as the best; `p = 0` keeps everything.

    Nguyen et al. 2024 (arXiv 2407.01082), section 3.
    """
    if p <= 0.0:
        return logits
    return _at_least(logits, logits.amax(-1, keepdim=True) + log(p))


def _at_least(
    logits: Float[Tensor, "rows vocab"], threshold: Float[Tensor, "rows 1"]
) -> Float[Tensor, "rows vocab"]:
    return logits.masked_fill(logits < threshold, -inf)


def draw(
    logits: Float[Tensor, "rows vocab"], uniforms: Float[Tensor, " rows"]
) -> Int[Tensor, " rows"]:
    """Sample a token per row from `softmax(logits)` by inverting the cumulative distribution.

    The token is the first whose cumulative mass exceeds the row's number in [0, 1), in float64; so
    the draw is a pure function, and a token of probability 0 is never drawn. Raises `InputError`
    if a row holds NaN or nothing but -inf.
    """
    mass = logits.softmax(-1, dtype=torch.float64).cumsum(-1)
    total = mass[:, -1:]
    if bool(total.isnan().any()):
        raise InputError(
            "No token can be drawn: the model's logits hold NaN or are all -inf. "
            "Its weights are damaged or its training diverged."
        )
    below = torch.nextafter(total, torch.zeros_like(total))
    target = torch.minimum(uniforms[:, None] * total, below)
    return torch.searchsorted(mass, target, right=True)[:, 0]


FOR_NUMPY = 2**18
"""Up to how many logits numpy finds maxima faster: in 50,000 within 5 µs, where torch takes 45."""


def most_probable(logits: Float[Tensor, "rows vocab"]) -> Int[Tensor, " rows"]:
    """The token of the largest logit in each row, which holds no NaN; any one of equals."""
    if logits.device.type != "cpu":
        return logits.argmax(-1)
    # For a row of 50,000 numbers torch takes 45 µs, numpy 8.
    return torch.from_numpy(logits.numpy().argmax(-1))


def maxima(logits: Float[Tensor, "rows vocab"]) -> list[float]:
    """The largest logit of each row; NaN for a row that holds NaN."""
    if logits.device.type != "cpu" or logits.numel() > FOR_NUMPY:
        return logits.amax(-1).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return logits.numpy().max(-1).tolist()


def generator_of(seed: int, row: int) -> torch.Generator:
    """The random generator of one row, given by the seed and the row number.

    It is on the CPU, so that a row draws the same numbers on any device and in any batch.
    """
    digest = blake2b(f"{seed}/{row}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest))


def uniforms(generators: Sequence[torch.Generator]) -> Float[Tensor, " rows"]:
    """Draw the next number in [0, 1) from each generator."""
    return torch.stack([torch.rand((), dtype=torch.float64, generator=g) for g in generators])


Choose = Callable[[Tensor, Sequence[int]], Tensor]
"""A function that chooses tokens, given the logits of some rows of a batch and their indices."""


@config
class GreedyConfig:
    """Always choose the most probable token that the `rules` allow; any one of equals."""

    kind: Literal["greedy"] = "greedy"
    rules: RulesConfig = NO_RULES
    """Constraints on the generated tokens."""

    def choose(self, numbers: Sequence[int]) -> Choose:
        """The choice function for a batch of prompts with these numbers."""
        return lambda logits, rows: most_probable(logits)


@config
class SampleConfig:
    """Draw a token after `rules`, `temperature`, `top_k`, `top_p` and `min_p`, in that order.

    Each prompt has its own stream of random numbers, determined by `seed` and its number.
    """

    kind: Literal["sample"] = "sample"
    temperature: Annotated[float, Field(gt=0.0, le=100.0)] = 1.0
    """Divides the logits: below 1, likely tokens gain; above 1, unlikely ones."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """Draw from this number of most likely tokens (Fan et al. 2018, §5); by default from all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Draw from the most likely tokens that together have this probability (Holtzman et al. 2020,
    §3.1).
    """
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Draw from tokens whose probability is at least this share of the largest (Nguyen et al.
    2024, §3).
    """
    seed: Annotated[int, Field(ge=0)] = 0
    """The seed of the random numbers; every prompt has its own stream."""
    rules: RulesConfig = NO_RULES
    """Constraints on the generated tokens."""

    def filtered(self, logits: Float[Tensor, "rows vocab"]) -> Float[Tensor, "rows vocab"]:
        """Apply temperature, top-k, top-p and min-p filtering."""
        logits = temperature(logits, self.temperature)
        logits = logits if self.top_k is None else top_k(logits, self.top_k)
        return min_p(top_p(logits, self.top_p), self.min_p)

    def choose(self, numbers: Sequence[int]) -> Choose:
        """The choice function for a batch of prompts with these numbers."""
        generators = [generator_of(self.seed, number) for number in numbers]

        def drawn(logits: Tensor, rows: Sequence[int]) -> Tensor:
            numbers = uniforms([generators[row] for row in rows])
            return draw(self.filtered(logits), numbers.to(logits.device))

        return drawn
