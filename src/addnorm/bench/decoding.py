"""Shared by decoding benchmarks, without torch: prompts, and timing of new tokens.

Every implementation generates a fixed number of tokens, with the end token disabled, so that
lengths do not depend on the random weights or on rounding.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from addnorm.bench.implementation import Cost, Round, Run

Precision = Literal["float32", "bfloat16", "int8", "int4"]
BYTES: dict[Precision, float] = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 9 / 16}
"""The bytes of a weight; those of int4 with the scale that each 32 of them share."""

SHORT: dict[Precision, str] = {
    "float32": "f32",
    "bfloat16": "bf16",
    "int8": "int8",
    "int4": "int4",
}
"""Short names of the precisions, in the names of implementations."""

GPT2_VOCABULARY = 50_257
GPT2_MATRICES = 12 * 12 * 768**2 + GPT2_VOCABULARY * 768
"""The number of matrix parameters used per token in GPT-2 small, including the head."""


@dataclass(frozen=True, kw_only=True)
class DecodingSizes:
    """The number and length of prompts, and the number of new tokens."""

    batch: int
    prompt: int = 128
    new: int = 128
    vocab_size: int = GPT2_VOCABULARY

    def prompts(self) -> list[list[int]]:
        """Return random prompts, the same for all implementations, without special ids."""
        draw = random.Random(1)
        return [
            [draw.randrange(4, self.vocab_size) for _ in range(self.prompt)]
            for _ in range(self.batch)
        ]

    def cost(self, precision: Precision) -> Cost:
        """Return the bytes of memory read per new token; a batch reads each weight once.

        Cached keys and values are not counted.
        """
        return Cost("read", GPT2_MATRICES * BYTES[precision] / self.batch)


def decoding(generate: Callable[[int], object], sizes: DecodingSizes) -> Run:
    """Return rounds that time the new tokens after the first, without the prompt.

    `generate(n)` processes the prompts and generates `n` tokens for each; the time for one token,
    including the prompt, is subtracted. `with prompt` is the speed without the subtraction, `prompt
    ms` the time subtracted.
    """

    def run() -> Round:
        prompt, whole = _seconds(generate, 1), _seconds(generate, sizes.new)
        details = {"with prompt": sizes.batch * sizes.new / whole, "prompt ms": 1e3 * prompt}
        return Round(max(whole - prompt, 1e-9), sizes.batch * (sizes.new - 1), details)

    return run


def _seconds(generate: Callable[[int], object], n: int) -> float:
    start = time.perf_counter()
    generate(n)
    return time.perf_counter() - start
