"""The time to the first token: of requests at random times, and of prompts with a shared prefix."""

import json
import random
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from addnorm.bench import prepared
from addnorm.bench.benchmark import Benchmark, Goal, Ratio
from addnorm.bench.implementation import Round, Run, implementation
from addnorm.bench.serving import (
    GPT2_BYTES,
    MEMORY,
    ServingSizes,
    continuous_batching,
    opened,
    served,
    served_by_transformers,
)
from addnorm.machine import cores
from addnorm.serve.engine.decoder import Kernels
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.sequence import Request

COMMON = 512
"""The tokens with which prompts begin alike."""

GAP = "gap.json"
"""The file with the mean seconds between two requests."""


def arrivals(n: int, gap: float) -> list[float]:
    """Return the second at which each request arrives, with exponentially distributed gaps."""
    draw, now, seconds = random.Random(2), 0.0, list[float]()
    for _ in range(n):
        now += draw.expovariate(1 / gap)
        seconds.append(now)
    return seconds


def at_half_load(folder: Path, *, sizes: ServingSizes, **options: Any) -> Run:
    """Prepare the model, and the gap between requests at which it is half busy.

    They are answered by transformers, or by us where it is not installed.
    """
    done = prepared.gpt2(folder, **options)
    if find_spec("transformers") is None:
        run = served(folder, sizes=sizes, precision="float32")
    else:
        run = served_by_transformers(folder, sizes=sizes)
    run()  # the first one is slower
    (folder / GAP).write_text(json.dumps(2 * run().seconds / sizes.requests))
    return done


def answered(folder: Path, *, sizes: ServingSizes, kernels: Kernels = "in_place") -> Run:
    """Return rounds in which the engine answers requests as they arrive."""
    engine = Engine(opened(folder, "float32"), memory=MEMORY, kernels=kernels)
    workload, salts = sizes.workload(), iter(range(10**9))

    def answer(seconds: Sequence[float]) -> list[float]:
        salt, start, first = str(next(salts)), time.perf_counter(), dict[str, float]()
        coming = list(enumerate(workload[: len(seconds)]))[::-1]
        while coming or engine.is_busy:
            now = time.perf_counter() - start
            if not engine.is_busy and seconds[coming[-1][0]] > now:
                time.sleep(seconds[coming[-1][0]] - now)
            while coming and seconds[coming[-1][0]] <= time.perf_counter() - start:
                i, (prompt, n) = coming.pop()
                greedy = Options(decoding="greedy", ignore_eos=True)
                asked = Request(
                    name=str(i), prompt=tuple(prompt), limit=n, salt=salt, options=greedy
                )
                engine.add(asked)
            for event in engine.step():
                first.setdefault(event.name, time.perf_counter() - start)
        return [first[str(i)] for i in range(len(seconds))]

    return _rounds(folder, sizes, answer)


def answered_by_transformers(folder: Path, *, sizes: ServingSizes) -> Run:
    """Return rounds in which transformers answers requests as they arrive."""
    torch.set_num_threads(cores())
    begin, workload = continuous_batching(folder, sizes), sizes.workload()

    def answer(seconds: Sequence[float]) -> list[float]:
        with torch.inference_mode(), begin() as manager:
            start, first = time.perf_counter(), dict[str, float]()
            names = [str(i) for i in range(len(seconds))]
            for name, (prompt, n), second in zip(names, workload, seconds, strict=False):
                time.sleep(max(0.0, second - (time.perf_counter() - start)))
                manager.add_request(
                    prompt, name, max_new_tokens=n, eos_token_id=-1, record_timestamps=True
                )
            while len(first) < len(seconds):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    first[result.request_id] = result.timestamps[0] - start
        return [first[name] for name in names]

    return _rounds(folder, sizes, answer)


def beginning_alike(folder: Path, *, sizes: ServingSizes, shared: bool) -> Run:
    """Return rounds of the mean time to the first token for prompts with a shared prefix.

    They arrive at once. Unless their beginning is `shared`, they have different salts.
    """
    bytes_needed = sizes.requests * (COMMON + sizes.prompt[1] + sizes.answer[1]) * GPT2_BYTES
    engine = Engine(opened(folder, "float32"), memory=2 * bytes_needed)
    common = [random.Random(3).randrange(4, sizes.vocab_size) for _ in range(COMMON)]
    workload, salts = sizes.workload(), iter(range(10**9))

    def run() -> Round:
        salt, start, first = next(salts), time.perf_counter(), dict[str, float]()
        for i, (rest, n) in enumerate(workload):
            asked = Request(
                name=str(i),
                prompt=(*common, *rest),
                limit=n,
                salt=str(salt) if shared else f"{salt} {i}",
                options=Options(decoding="greedy", ignore_eos=True),
            )
            engine.add(asked)
        while engine.is_busy:
            for event in engine.step():
                first.setdefault(event.name, time.perf_counter() - start)
        return Round(sum(first.values()), len(first))

    return run


def _rounds(
    folder: Path, sizes: ServingSizes, answer: Callable[[Sequence[float]], list[float]]
) -> Run:
    """Return rounds of the 95th percentile of the time to the first token."""
    seconds = arrivals(sizes.requests, json.loads((folder / GAP).read_text()))
    answer([0.0] * 3)  # the first ones are slower

    def run() -> Round:
        start = time.perf_counter()
        first = answer(seconds)
        whole = time.perf_counter() - start
        waits = sorted(b - a for a, b in zip(seconds, first, strict=True))
        p95 = waits[len(waits) * 19 // 20]
        details = {"median ms": 1e3 * waits[len(waits) // 2], "all s": whole}
        return Round(p95, 1, details)

    return run


SIZES = ServingSizes(requests=32, answer=(8, 32))


def arrivals_benchmark() -> Benchmark:
    """Return the benchmark of requests to GPT-2 small at random times."""
    peer = "transformers, continuous batching"
    return Benchmark(
        name="serve-arrivals",
        description="GPT-2 small, 32 requests that arrive at random, at half load: time to the "
        "first token, 95th percentile",
        unit="ms",
        figure="ms",
        implementations=(
            implementation("ours", answered, sizes=SIZES, warm_up=False),
            implementation(
                peer, answered_by_transformers, "transformers", sizes=SIZES, warm_up=False
            ),
        ),
        targets=(
            Ratio(
                ours=("ours",),
                peers=(peer,),
                figure="ms",
                goal=Goal(must=0.5, aim=0.25, at_most=True),
            ),
        ),
        details=("median ms", "all s"),
        prepare=prepared_arrivals,
    )


def prepared_arrivals(folder: Path) -> Run:
    """Prepare the model and the arrival times for this benchmark."""
    return at_half_load(folder, sizes=SIZES)


def prefix_benchmark() -> Benchmark:
    """Return the benchmark of prompts to GPT-2 small with a shared prefix."""
    sizes = ServingSizes(prompt=(16, 16), answer=(1, 2))
    return Benchmark(
        name="serve-prefix",
        description=f"GPT-2 small, 32 prompts whose first {COMMON} tokens of {COMMON + 16} are the "
        "same: mean time to the first token",
        unit="ms",
        figure="ms",
        implementations=tuple(
            implementation(name, beginning_alike, sizes=sizes, shared=shared, warm_up=shared)
            for name, shared in (("shared", True), ("computed for each", False))
        ),
        targets=(
            Ratio(
                ours=("shared",),
                peers=("computed for each",),
                figure="ms",
                goal=Goal(must=0.15, at_most=True),
            ),
        ),
        prepare=prepared.gpt2,
    )
