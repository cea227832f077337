"""What it is worth that freed pages stay, and that scores never leave the processor's cache.

    python benchmarks/memory.py

Measures each way in a process of its own, their rounds in turn: attention in bfloat16, forward and
backward, by torch's kernel, in plain products and in the cache; and the bench's training steps.
Once with pages given back to the system and once with pages kept. Writes medians to
`results/memory.json`.
"""

import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from addnorm.bench import ours
from addnorm.bench.implementation import Run
from addnorm.bench.training import CHARACTERS, DECODER, TINY, DecoderSizes, TranslatorSizes
from addnorm.memory import keep_freed_pages
from addnorm.nn.attention import SDPACore, kernels
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
    """One pass forward and backward; `many` is from how many scores the cache is used."""
    batch, heads, seq = shape
    leaves = [
        torch.randn(batch, seq, heads, 64).bfloat16().transpose(1, 2).requires_grad_()
        for _ in range(3)
    ]
    module = SDPACore()

    def attend() -> Tensor:
        if many is None:
            return F.scaled_dot_product_attention(*leaves, is_causal=True)
        kernels.MANY = many
        with torch.autocast("cpu", torch.bfloat16):
            return module(*leaves, Causal())

    assert seq <= kernels.SHORT
    return lambda: torch.autograd.grad(attend(), leaves, leaves[0].detach())


def ways() -> dict[str, Callable[[], float]]:
    """Milliseconds of everything that is measured, by its name."""
    found: dict[str, Callable[[], float]] = {}
    for name, shape in SHAPES.items():
        for way, many in (("kernel", None), ("plain products", 2**62), ("in the cache", 0)):
            found[f"attention {name}, {way}"] = lambda s=shape, m=many: timed(attention(s, m))
    for name, start, sizes, precision in (
        ("decoder 4 × 128, float32", ours.train_decoder, CHARACTERS, "float32"),
        ("decoder 6 × 384, bfloat16", ours.train_decoder, DECODER, "bfloat16"),
        ("translator 4 + 4 × 128, float32", ours.train_translator, TINY, "float32"),
    ):
        found[f"step of the {name}"] = lambda f=start, s=sizes, p=precision: step(f, s, p)
    return found


def timed(run: Callable[[], object]) -> float:
    """The median of a few runs after two that do not count."""
    times = list[float]()
    for _ in range(REPEATS + 2):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return 1000 * statistics.median(times[2:])


def step(start: Callable[..., Run], sizes: Sizes, precision: str) -> float:
    """A step of the library's own loop: the second of two rounds."""
    with tempfile.TemporaryDirectory() as folder:
        run = start(Path(folder), sizes=sizes, precision=precision)
        run()
        done = run()
    return 1000 * done.seconds * sizes.tokens / done.units


def one(name: str, pages: str) -> None:
    """What a process of its own does: print one figure."""
    torch.manual_seed(0)
    trainer.keep_freed_pages = lambda: None
    if pages == "kept":
        keep_freed_pages()
    print(ways()[name]())


def main() -> None:
    """Measure everything both ways and keep the figures."""
    found: dict[str, dict[str, list[float]]] = {
        name: {"given back": [], "kept": []} for name in ways()
    }
    for _ in range(ROUNDS):
        for name, each in found.items():
            for pages, figures in each.items():
                command = [sys.executable, __file__, name, pages]
                out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                figures.append(float(out))
    results = {
        name: {pages: round(statistics.median(t), 1) for pages, t in each.items()}
        for name, each in found.items()
    }
    about = {
        "command": "python benchmarks/memory.py",
        "unit": f"ms, pages given back or kept; medians of {ROUNDS} rounds",
        "torch": torch.__version__,
        "processor": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
    text = json.dumps({**about, "results": results}, indent=2, ensure_ascii=False)
    (Path(__file__).parent / "results" / "memory.json").write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    one(*sys.argv[1:]) if sys.argv[1:] else main()
