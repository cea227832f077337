"""The gain from keeping freed pages, and from scores that stay in the processor's cache.

    python benchmarks/memory.py

Measures each way in its own process, in turn: attention in bfloat16, forward and
backward, by torch's kernel, in plain products and in the cache; and the bench's training steps.
Once with pages given back to the system and once with pages kept. Writes medians to
`results/memory.json`.
"""

import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from timing import milliseconds, seconds_in_turn, write_results
from torch import Tensor
from torch.nn import functional as F

from addnorm.bench import ours
from addnorm.bench.implementation import Run
from addnorm.bench.training import CHARACTERS, DECODER, TINY, DecoderSizes, TranslatorSizes
from addnorm.machine import keep_freed_pages
from addnorm.nn.attention import SDPACore
from addnorm.nn.choices import choices, use_choices
from addnorm.nn.masks import Causal
from addnorm.training import trainer

Sizes = DecoderSizes | TranslatorSizes

SHAPES = {
    "16 × 6 × 256": (16, 6, 256),
    "16 × 6 × 512": (16, 6, 512),
    "8 × 12 × 1024": (8, 12, 1024),
}
"""Rows, heads and tokens; heads are 64 wide."""
ROUNDS = 3
REPEATS = 5


def attention(shape: tuple[int, int, int], many: int | None) -> Callable[[], object]:
    """Return a pass forward and backward that uses the cache for more than `many` scores."""
    batch, heads, seq = shape
    leaves = [
        torch.randn(batch, seq, heads, 64).bfloat16().transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]
    module = SDPACore()

    def attend() -> Tensor:
        if many is None:
            return F.scaled_dot_product_attention(*leaves, is_causal=True)
        with (
            torch.autocast("cpu", torch.bfloat16),
            use_choices(replace(choices(), many_scores=many)),
        ):
            return module(*leaves, Causal())

    return lambda: torch.autograd.grad(attend(), leaves, leaves[0].detach())


def ways() -> dict[str, Callable[[], float]]:
    """Return functions that measure milliseconds, by the name of what they measure."""
    works: dict[str, Callable[[], float]] = {}
    for name, shape in SHAPES.items():
        for way, many in (("kernel", None), ("plain products", 2**62), ("in the cache", 0)):
            works[f"attention {name}, {way}"] = lambda s=shape, m=many: timed(attention(s, m))
    for name, start, sizes, precision in (
        ("decoder 4 × 128, float32", ours.train_decoder, CHARACTERS, "float32"),
        ("decoder 6 × 384, bfloat16", ours.train_decoder, DECODER, "bfloat16"),
        ("translator 4 + 4 × 128, float32", ours.train_translator, TINY, "float32"),
    ):
        works[f"step of the {name}"] = lambda f=start, s=sizes, p=precision: step(f, s, p)
    return works


def timed(run: Callable[[], object]) -> float:
    """Return the median milliseconds of a few runs after two of warm-up."""
    return milliseconds(seconds_in_turn({"run": run}, REPEATS, warm_up=2)["run"], 6)


def step(start: Callable[..., Run], sizes: Sizes, precision: str) -> float:
    """Return the milliseconds of a step of the library's loop, in the second of two rounds."""
    with tempfile.TemporaryDirectory() as folder:
        run = start(Path(folder), sizes=sizes, precision=precision)
        run()
        done = run()
    return 1000 * done.seconds * sizes.tokens / done.units


def measure(name: str, pages: str) -> None:
    """Print one figure, in its own process."""
    torch.manual_seed(0)
    trainer.keep_freed_pages = lambda: None
    if pages == "kept":
        keep_freed_pages()
    print(ways()[name]())


def main() -> None:
    """Measure everything both ways and keep the figures."""
    figures: dict[str, dict[str, list[float]]] = {
        name: {"given back": [], "kept": []} for name in ways()
    }
    for _ in range(ROUNDS):
        for name, each in figures.items():
            for pages, times in each.items():
                command = [sys.executable, __file__, name, pages]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                times.append(float(out))
    results = {
        name: {pages: round(statistics.median(t), 1) for pages, t in each.items()}
        for name, each in figures.items()
    }
    about = {
        "unit": f"ms, pages given back or kept; medians of {ROUNDS} rounds",
        "capability": torch.backends.cpu.get_cpu_capability(),
    }
    write_results("memory", {**about, "results": results})


if __name__ == "__main__":
    measure(*sys.argv[1:]) if sys.argv[1:] else main()
