"""Decoding steps of a paged decoder on a CPU: kernels, weights, page sizes and numbers of rows.

    python benchmarks/paged_steps.py

A model of GPT-2 small's shape with random weights (`paged_steps.json`): one new token of 32
sequences that have 17 to 272 tokens, and of one that has 128, by keys that are gathered, by keys in
place, and by a compiled graph, exact or not, and `generate --compile` of one text; and a prompt of
512 tokens in chunks of 256. Medians of rounds in turn.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import torch
from timing import seconds_in_turn, write_results

from addnorm.generate import CompiledContinuation
from addnorm.models import DecoderModel
from addnorm.models.presets import gpt2_small
from addnorm.quantize import quantize_int8
from addnorm.serve.engine.decoder import Kernels, PagedDecoder
from addnorm.serve.engine.pages import PagePool, PageTable
from addnorm.serve.engine.schedule import Step
from addnorm.serve.engine.sequence import Request
from addnorm.serve.engine.sequence import Sequence as Text

VOCAB, ROUNDS, STEPS = 50257, 7, 3
RAGGED = [round(17 + 255 * i / 31) for i in range(32)]
KERNELS: tuple[Kernels, ...] = ("gathered", "in_place", "compiled")
PROMPT, CHUNK = 512, 256
WEIGHTS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.float32}


def model_with(weights: str) -> DecoderModel:
    """The model with random weights of a type."""
    torch.manual_seed(0)
    model = gpt2_small().build(VOCAB).eval().to(WEIGHTS[weights])
    if weights == "int8":
        quantize_int8(model)
    return model


def steps(
    model: DecoderModel,
    kernels: Kernels,
    lengths: Sequence[int],
    page_size: int = 16,
    *,
    exact: bool = False,
) -> Callable[[], None]:
    """Some steps of sequences of these lengths, all at the same token, whose keys are written."""
    pool = PagePool(sum(-(-n // page_size) for n in lengths), page_size)
    decoder = PagedDecoder(model, pool, kernels, exact=exact)
    texts: list[Text] = []
    for i, n in enumerate(lengths):
        request = Request(name=str(i), prompt=(1,) * n, limit=1)
        texts.append(Text(request, 0, PageTable(pool), [1] * n))
        texts[-1].table.append(n)
    for text in texts:  # so that keys are numbers as in use
        decoder.compute(Step(chunk=(text, len(text.tokens) - 1)))
        text.computed = len(text.tokens) - 1
    step = Step(decode=tuple(texts))

    def run() -> None:
        for _ in range(STEPS):
            decoder.compute(step)

    return run


def reading(model: DecoderModel, *, exact: bool) -> Callable[[], None]:
    """A prompt that is read in chunks."""
    pool = PagePool(PROMPT // 16, 16)
    decoder = PagedDecoder(model, pool, exact=exact)
    request = Request(name="prompt", prompt=(1,) * PROMPT, limit=1)
    text = Text(request, 0, PageTable(pool), [1] * PROMPT)
    text.table.append(PROMPT)

    def run() -> None:
        for first in range(0, PROMPT, CHUNK):
            text.computed = first
            decoder.compute(Step(chunk=(text, CHUNK)))

    return run


def generating(model: DecoderModel) -> Callable[[], None]:
    """Some steps of one text by compiled generation."""
    continuation = CompiledContinuation(model)
    continuation.start([[1] * 128])

    def run() -> None:
        for _ in range(STEPS):
            continuation.step(torch.tensor([1]))

    return run


def figures(times: dict[str, list[float]], rows: int) -> dict[str, float]:
    """Tokens per second of each work."""
    return {name: round(rows * STEPS / median(each), 1) for name, each in times.items()}


def measured(weights: str) -> dict[str, object]:
    """Tokens per second for a type of weights."""
    model = model_with(weights)
    works = {kernels: partial(steps, model, kernels) for kernels in KERNELS}
    works |= {f"{k}, exact": partial(steps, model, k, exact=True) for k in KERNELS[1:]}
    ragged = {name: work(RAGGED) for name, work in works.items()}
    alone = {name: work([128]) for name, work in works.items()}
    alone["generate --compile"] = generating(model)
    prompts = {name: reading(model, exact=name == "exact") for name in ("plain", "exact")}
    sizes = {f"pages of {n}": steps(model, "compiled", RAGGED, n) for n in (8, 16, 32)}
    return {
        "32 sequences": figures(seconds_in_turn(ragged, ROUNDS), 32),
        "one sequence": figures(seconds_in_turn(alone, ROUNDS), 1),
        "prompt of 512": {
            name: round(PROMPT / median(times), 1)
            for name, times in seconds_in_turn(prompts, ROUNDS).items()
        },
        "32 sequences, compiled": figures(seconds_in_turn(sizes, ROUNDS), 32),
    }


if __name__ == "__main__":
    write_results(
        "paged_steps",
        {"unit": "tokens per second", **{weights: measured(weights) for weights in WEIGHTS}},
    )
