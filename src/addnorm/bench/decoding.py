"""What decoding has in common, free of torch: prompts, and rounds that tell prompt from new tokens.

Every implementation writes a fixed number of tokens, its end token off: how long a text gets is
then no matter of weights, which are random, nor of rounding.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from addnorm.bench.implementation import Cost, Round, Run

Precision = Literal["float32", "bfloat16", "int8"]
BYTES: dict[Precision, int] = {"float32": 4, "bfloat16": 2, "int8": 1}
SHORT: dict[Precision, str] = {"float32": "f32", "bfloat16": "bf16", "int8": "int8"}
"""How the names of implementations say it."""

GPT2_VOCABULARY = 50_257
GPT2_MATRICES = 12 * 12 * 768**2 + GPT2_VOCABULARY * 768
"""Parameters of GPT-2 small that multiply every token, the head's among them."""


@dataclass(frozen=True, kw_only=True)
class DecodingSizes:
    """So many prompts of one length, and how many tokens each is continued by."""

    batch: int
    prompt: int = 128
    new: int = 128
    vocab_size: int = GPT2_VOCABULARY

    def prompts(self) -> list[list[int]]:
        """Random tokens, the same for every implementation; none of the first four."""
        draw = random.Random(1)
        return [
            [draw.randrange(4, self.vocab_size) for _ in range(self.prompt)]
            for _ in range(self.batch)
        ]

    def cost(self, precision: Precision) -> Cost:
        """Bytes that a new token reads: each weight once for the whole batch.

        Keys and values of earlier tokens come on top, and are not counted.
        """
        return Cost("read", GPT2_MATRICES * BYTES[precision] / self.batch)


def decoding(generate: Callable[[int], object], sizes: DecodingSizes) -> Run:
    """Rounds that count the new tokens after the first, in the time they alone take.

    `generate(n)` reads the prompts and writes `n` tokens after each; the time of one token, prompt
    included, is taken off. `with prompt` counts all of it, `prompt ms` is what was taken off.
    """

    def run() -> Round:
        prompt, whole = _seconds(generate, 1), _seconds(generate, sizes.new)
        details = {
            "with prompt": sizes.batch * sizes.new / whole,
            "prompt ms": 1e3 * prompt,
        }
        return Round(max(whole - prompt, 1e-9), sizes.batch * (sizes.new - 1), details)

    return run


def _seconds(generate: Callable[[int], object], n: int) -> float:
    start = time.perf_counter()
    generate(n)
    return time.perf_counter() - start
