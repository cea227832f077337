"""The serving benchmark: one model answers many requests of unequal length together."""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch

from addnorm.bench import prepared
from addnorm.bench.benchmark import Benchmark, Goal, Ratio
from addnorm.bench.decoding import GPT2_VOCABULARY, SHORT
from addnorm.bench.engines import LlamaCppContext
from addnorm.bench.implementation import Round, Run, implementation
from addnorm.generate import CompiledContinuation, Continuation, GreedyConfig
from addnorm.generate.decode import decode
from addnorm.machine import cores
from addnorm.models import DecoderModel
from addnorm.runs.opening import open_model
from addnorm.runs.trained_model import TrainedModel
from addnorm.serve.engine.decoder import Kernels
from addnorm.serve.engine.engine import Engine
from addnorm.serve.engine.ngrams import PromptLookup
from addnorm.serve.engine.options import Options
from addnorm.serve.engine.sequence import Request

ServingPrecision = Literal["float32", "int8"]

MEMORY = 2**30
"""The bytes for keys and values, of ours and of the peer."""

PAGE = 16
"""The tokens of a page, of ours and of the peer."""

GPT2_BYTES = 12 * 2 * 768 * 4
"""The bytes of the keys and values of a token in GPT-2 small, float32."""


@dataclass(frozen=True, kw_only=True)
class ServingSizes:
    """The number of requests, and the range of prompt and answer lengths."""

    requests: int = 32
    prompt: tuple[int, int] = (16, 256)
    answer: tuple[int, int] = (16, 128)
    vocab_size: int = GPT2_VOCABULARY

    def workload(self) -> list[tuple[list[int], int]]:
        """Return random prompts with their answer lengths, the same for all implementations."""
        draw = random.Random(1)
        return [
            (
                [draw.randrange(4, self.vocab_size) for _ in range(draw.randint(*self.prompt))],
                draw.randint(*self.answer),
            )
            for _ in range(self.requests)
        ]

    @property
    def tokens(self) -> int:
        """The number of new tokens in all answers."""
        return sum(n for _, n in self.workload())


def served(
    folder: Path,
    *,
    sizes: ServingSizes,
    precision: ServingPrecision,
    kernels: Kernels = "in_place",
    decoding: Literal["greedy", "sample"] = "greedy",
    drafts: bool = False,
) -> Run:
    """Return rounds in which the engine answers all requests, which arrive at once.

    With `drafts`, tokens are drafted by prompt lookup. With random weights, greedy texts soon
    repeat themselves, and sampled ones never do.
    """
    run, workload = opened(folder, precision), sizes.workload()
    engine = Engine(run, memory=MEMORY, page_size=PAGE, kernels=kernels)
    if drafts:
        engine.speculate(PromptLookup())
    salts = iter(range(10**9))

    def answer_all() -> list[float]:
        salt = str(next(salts))  # no round shares the beginnings of another's prompts
        start, first = time.perf_counter(), dict[str, float]()
        for i, (prompt, n) in enumerate(workload):
            options = Options(decoding=decoding, seed=i, ignore_eos=True)
            engine.add(
                Request(name=str(i), prompt=tuple(prompt), limit=n, salt=salt, options=options)
            )
        while engine.is_busy:
            for event in engine.step():
                first.setdefault(event.name, time.perf_counter() - start)
        return [*first.values()]

    return _rounds(answer_all, sizes)


def in_batches(
    folder: Path, *, sizes: ServingSizes, precision: ServingPrecision, compile: bool = False
) -> Run:
    """Return rounds in which all requests form one batch, from which finished ones drop out."""
    model, workload = opened(folder, precision).model, sizes.workload()
    assert isinstance(model, DecoderModel)
    continuation = CompiledContinuation(model, several=True) if compile else Continuation(model)
    prompts, limits = [prompt for prompt, _ in workload], [n for _, n in workload]

    def answer_all() -> list[float]:
        decode(continuation, prompts, GreedyConfig(), limits, eos_id=None)
        return []

    return _rounds(answer_all, sizes)


def continuous_batching(folder: Path, sizes: ServingSizes) -> Callable[[], Any]:
    """Return a context manager that starts transformers' continuous batching."""
    transformers: Any = import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder / prepared.HF, attn_implementation="sdpa"
    ).eval()
    config = transformers.GenerationConfig(
        max_new_tokens=sizes.answer[1], do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    settings = transformers.ContinuousBatchingConfig(
        page_size=PAGE,
        num_blocks=MEMORY // (PAGE * GPT2_BYTES),
        max_batch_tokens=256,
        allow_block_sharing=False,
    )
    return lambda: model.continuous_batching_context_manager(
        generation_config=config, continuous_batching_config=settings, warmup=False
    )


def served_by_transformers(folder: Path, *, sizes: ServingSizes) -> Run:
    """Return rounds in which transformers answers all requests by its continuous batching."""
    torch.set_num_threads(cores())
    begin, workload = continuous_batching(folder, sizes), sizes.workload()

    def answer_all() -> list[float]:
        with torch.inference_mode(), begin() as manager:
            for prompt, n in workload:
                manager.add_request(prompt, max_new_tokens=n, eos_token_id=-1)
            n_open = len(workload)
            while n_open:
                result = manager.get_result(timeout=1)
                n_open -= result is not None and result.is_finished()
        return []

    return _rounds(answer_all, sizes)


def served_by_llama_cpp(folder: Path, *, sizes: ServingSizes, precision: ServingPrecision) -> Run:
    """Return rounds in which llama.cpp answers all requests as sequences of one batch."""
    prompts, limits = map(list, zip(*sizes.workload(), strict=True))
    context = LlamaCppContext(folder, precision, prompts, sizes.answer[1])

    def answer_all() -> list[float]:
        context.generate(prompts, limits)
        return []

    return _rounds(answer_all, sizes)


def _rounds(answer_all: Callable[[], list[float]], sizes: ServingSizes) -> Run:
    """Return rounds of the new tokens in all answers, with the times to the first tokens."""

    def run() -> Round:
        start = time.perf_counter()
        first = sorted(answer_all())
        seconds = time.perf_counter() - start
        details = {"first token s": first[len(first) // 2]} if first else {}
        return Round(seconds, sizes.tokens, details)

    return run


def opened(folder: Path, precision: ServingPrecision) -> TrainedModel:
    """Return the model in a precision, and use all cores."""
    torch.set_num_threads(cores())
    run = open_model(folder / prepared.HF)
    return run.to(weights="int8") if precision == "int8" else run


def benchmark() -> Benchmark:
    """Return the benchmark of ragged requests to GPT-2 small with random weights."""
    sizes = ServingSizes()
    precisions: tuple[ServingPrecision, ...] = ("float32", "int8")
    peer = "transformers f32, continuous batching"
    ways: dict[str, Callable[..., Run]] = {
        "ours": partial(served, kernels="compiled"),
        "ours, not compiled": served,
        "ours, one batch": in_batches,
        "ours, one batch, compiled": partial(in_batches, compile=True),
    }
    ours = [
        implementation(f"{name} {SHORT[precision]}", build, sizes=sizes, precision=precision)
        for precision in precisions
        for name, build in ways.items()
    ]
    theirs = [implementation(peer, served_by_transformers, "transformers", sizes=sizes)] + [
        implementation(
            f"llama.cpp {SHORT[precision]}",
            served_by_llama_cpp,
            "llama_cpp",
            sizes=sizes,
            precision=precision,
        )
        for precision in precisions
    ]
    return Benchmark(
        name="serve",
        description="GPT-2 small, 32 requests: prompts of 16–256 tokens, answers of 16–128, greedy",
        unit="new tokens/s",
        implementations=(*ours, *theirs),
        targets=(
            Ratio(ours=("ours f32",), peers=(peer,), goal=Goal(must=1.5, aim=2.0)),
            Ratio(ours=("ours int8",), peers=(peer,), goal=Goal(must=1.5, aim=2.0)),
            *(
                Ratio(
                    ours=(f"ours {SHORT[precision]}",),
                    peers=(f"llama.cpp {SHORT[precision]}",),
                    goal=Goal(must=1.0, aim=1.5),
                )
                for precision in precisions
            ),
        ),
        details=("first token s",),
        prepare=prepared.gpt2,
    )


def drafts_benchmark() -> Benchmark:
    """Return the benchmark of prompt lookup, for repetitive and other texts."""
    sizes = ServingSizes(requests=4, prompt=(16, 64), answer=(96, 128))
    texts: dict[str, Literal["greedy", "sample"]] = {"repetitive": "greedy", "other": "sample"}
    names = {text: (f"drafts, {text} text", f"none, {text} text") for text in texts}
    return Benchmark(
        name="serve-drafts",
        description="GPT-2 small, 4 requests with answers of 96–128 tokens, prompt lookup",
        unit="new tokens/s",
        implementations=tuple(
            implementation(
                name, served, sizes=sizes, precision="float32", decoding=texts[text], drafts=drafts
            )
            for text in texts
            for name, drafts in zip(names[text], (True, False), strict=True)
        ),
        targets=tuple(
            Ratio(ours=(names[text][0],), peers=(names[text][1],), goal=goal)
            for text, goal in (
                ("repetitive", Goal(must=1.5, aim=2.0)),
                ("other", Goal(must=0.95, aim=1.0)),
            )
        ),
        details=("first token s",),
        prepare=prepared.gpt2,
    )
