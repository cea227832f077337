"""One text by GPT-2 small from weights of each type: the share of the memory's speed.

    python benchmarks/row_products.py [float32] [bfloat16] [int8] [int4]

Random weights; a prompt of 128 tokens and 32 new ones by `generate --compile`, with our operators
where they win (`after`) and without (`before`), in turn with reading 512 MiB. The time of a step
that reads next to nothing is that of a model of the same depth and a width of 64.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from unittest.mock import patch

import torch
from timing import RESULTS, seconds_in_turn, write_results

from addnorm.bench.ceiling import rate
from addnorm.bench.decoding import GPT2_MATRICES, GPT2_VOCABULARY
from addnorm.generate import CompiledContinuation, GreedyConfig, generate, graphs, single_row
from addnorm.machine import cores, file_name, processor
from addnorm.models import DecoderModel
from addnorm.models.presets import gpt2_small
from addnorm.nn.attention import AttentionConfig
from addnorm.quantize import Int4Config, quantize, quantize_int8
from addnorm.tuning.row_products import RowProduct, candidates, choose, measured

PROMPT, NEW, ROUNDS = 128, 32, 5
BYTES = {"float32": 4, "bfloat16": 2, "int8": 1, "int4": 9 / 16}
"""The bytes of a weight; the scale of 32 weights of four bits takes two."""
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "int4": torch.uint8,
}
MEMORY = torch.ones(2**27)


def model_with(weights: str, width: int = 768) -> DecoderModel:
    """The model with random weights of a type."""
    torch.manual_seed(0)
    heads = AttentionConfig(n_heads=width // 64)
    config = replace(gpt2_small(), d_model=width, attention=heads)
    model = config.build(GPT2_VOCABULARY if width == 768 else 64).eval()
    if weights == "bfloat16":
        model.bfloat16()
    if weights == "int8":
        quantize_int8(model)
    if weights == "int4":
        quantize(model, Int4Config())
    return model


@contextmanager
def products(kind: RowProduct) -> Iterator[None]:
    """Graphs with this product for every large matrix."""
    with (
        patch.object(graphs, "row_product", lambda dtype: kind),
        patch.object(single_row, "row_product", lambda dtype: kind),
    ):
        yield


def kinds(weights: str) -> dict[str, RowProduct]:
    """The fastest product without our operator, and the fastest of all."""
    times, _ = measured(candidates(DTYPES[weights]))
    others = {name: seconds for name, seconds in times.items() if name != "operator"}
    return {"before": choose(others), "after": choose(times)}


def tokens(writer: CompiledContinuation) -> Callable[[], object]:
    """A prompt, and new tokens one by one."""
    prompt = [[(7 * i) % 60 + 4 for i in range(PROMPT)]]
    return lambda: generate(writer, prompt, GreedyConfig(), max_new_tokens=NEW, eos_id=None)


def first(writer: CompiledContinuation) -> Callable[[], object]:
    """A prompt, and one new token, whose time is not a step's."""
    prompt = [[(7 * i) % 60 + 4 for i in range(PROMPT)]]
    return lambda: generate(writer, prompt, GreedyConfig(), max_new_tokens=1, eos_id=None)


def figures(weights: str) -> dict[str, object]:
    """The milliseconds of a step before and after, and shares of the memory's speed."""
    works: dict[str, Callable[[], object]] = {}
    choices = kinds(weights)
    for name, kind in choices.items():
        with products(kind):
            writer = CompiledContinuation(model_with(weights))
            works |= {name: tokens(writer), f"{name}, prompt": first(writer)}
    if weights == "float32":
        narrow = CompiledContinuation(model_with(weights, 64))
        works |= {"narrow": tokens(narrow), "narrow, prompt": first(narrow)}
    rates: list[float] = []
    works["memory"] = lambda: rates.append(rate(MEMORY.sum, 4.0 * MEMORY.numel(), 0.15))
    times = seconds_in_turn(works, ROUNDS)
    steps = {
        name: [
            (whole - prompt) / (NEW - 1)
            for whole, prompt in zip(times[name], times[f"{name}, prompt"], strict=True)
        ]
        for name in works
        if f"{name}, prompt" in works
    }
    read = GPT2_MATRICES * BYTES[weights]
    shares = {
        name: [read / step / speed for step, speed in zip(steps[name], rates[1:], strict=True)]
        for name in choices
    }
    gains = [b / a for b, a in zip(steps["before"], steps["after"], strict=True)]
    return {
        "products": choices,
        "milliseconds": {name: round(1e3 * median(of), 2) for name, of in steps.items()},
        "share": {name: round(median(of), 3) for name, of in shares.items()},
        "gain": round(median(gains), 2),
        "memory GB/s": round(median(rates) / 1e9, 1),
    }


def main() -> None:
    """Measure each type of weights and keep the figures with those of other types."""
    torch.set_num_threads(cores())
    name = f"row_products-{file_name(processor())}"
    file = RESULTS / f"{name}.json"
    results = json.loads(file.read_text("utf-8"))["results"] if file.exists() else {}
    command = "python benchmarks/row_products.py"
    for weights in sys.argv[1:] or BYTES:
        results[weights] = figures(weights)
        write_results(name, {"command": command, "results": results})


if __name__ == "__main__":
    main()
