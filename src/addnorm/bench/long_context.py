"""The long-context benchmark: reads a long prompt, then generates with windowed attention."""

import time
from dataclasses import replace
from pathlib import Path

import torch

from addnorm.bench.benchmark import Benchmark, Goal, Limit, Ratio, Target
from addnorm.bench.decoding import GPT2_VOCABULARY
from addnorm.bench.implementation import Round, Run, held_mib, implementation
from addnorm.bench.training import random_tokens
from addnorm.generate import Continuation
from addnorm.machine import cores
from addnorm.models import DecoderConfig
from addnorm.models.presets import gpt2_small
from addnorm.nn.attention import AttentionConfig, WindowPatternConfig
from addnorm.nn.positions import RotaryConfig

LENGTHS = (1024, 4096, 16_384)
WINDOW = 256
STEPS = 64


def config_of(window: int | None, small: DecoderConfig | None = None) -> DecoderConfig:
    """Return GPT-2 small, or `small`, with rotary positions and optionally a sliding window."""
    config = replace(small or gpt2_small(), position=RotaryConfig(), dropout=0.0)
    if window is None:
        return config
    assert isinstance(config.attention, AttentionConfig)
    windowed = replace(config.attention, pattern=WindowPatternConfig(size=window))
    return replace(config, attention=windowed)


def read(
    _: Path, *, length: int, window: int | None = None, small: DecoderConfig | None = None
) -> Run:
    """Return rounds that each process a prompt up to the next-token logits."""
    next_token, prompt = _begun(config_of(window, small), length)

    def run() -> Round:
        start = time.perf_counter()
        next_token.start([prompt])
        return Round(time.perf_counter() - start, length, {"held MiB": held_mib()})

    return run


def write(_: Path, *, length: int, window: int, small: DecoderConfig | None = None) -> Run:
    """Return rounds that each generate some tokens after a prompt of this length."""
    next_token, prompt = _begun(config_of(window, small), length)
    next_token.start([prompt])
    tokens = torch.tensor(prompt[:1])

    def run() -> Round:
        start = time.perf_counter()
        for _ in range(STEPS):
            next_token.step(tokens)
        return Round(time.perf_counter() - start, STEPS, {"held MiB": held_mib()})

    return run


def _begun(config: DecoderConfig, length: int) -> tuple[Continuation, list[int]]:
    torch.set_num_threads(cores())
    torch.manual_seed(0)
    model = config.build(GPT2_VOCABULARY).eval()
    prompt: list[int] = random_tokens(GPT2_VOCABULARY, 1, length)[0].tolist()
    return Continuation(model), prompt


def benchmark() -> Benchmark:
    """Return the benchmark of one text, 16 times as long as GPT-2's maximum."""
    longest = LENGTHS[-1]
    reading = {f"read {longest:,}": None, f"read {longest:,}, window {WINDOW}": WINDOW}
    writing = {f"write after {n:,}, window {WINDOW}": n for n in LENGTHS}
    first, *_, last = writing
    gigabytes, constant = Goal(must=4096.0, at_most=True), Goal(must=1.1, at_most=True)
    limits = tuple(Limit(ours=(name,), figure="peak_mib", goal=gigabytes) for name in reading)
    ratios: tuple[Target, ...] = tuple(
        Ratio(ours=(last,), peers=(first,), figure=figure, goal=constant)
        for figure in ("ms", "held MiB")
    )
    return Benchmark(
        name="long-context",
        description="GPT-2 small with rotary positions on one text of up to 16,384 tokens, float32",
        unit="ms per token",
        figure="ms",
        implementations=(
            *(
                implementation(name, read, length=longest, window=window, warm_up=False)
                for name, window in reading.items()
            ),
            *(implementation(name, write, length=n, window=WINDOW) for name, n in writing.items()),
        ),
        targets=(*limits, *ratios),
        details=("held MiB",),
    )
