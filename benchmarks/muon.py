"""A step of Muon beside torch's own, and training in bfloat16 beside `auto`, on this processor.

    python benchmarks/muon.py

Alternates both sides in one run; writes milliseconds as medians to `results/muon.json`.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from addnorm.nn.linear import multiplies_bfloat16
from addnorm.processor import processor
from addnorm.training.muon import Muon
from addnorm.training.precision import PrecisionName, autocast

SHAPES = {
    "decoder 4 × 128": [(128, 128)] * 16 + [(512, 128)] * 4 + [(128, 512)] * 4,
    "decoder 6 × 384": [(384, 384)] * 24 + [(1536, 384)] * 6 + [(384, 1536)] * 6,
}
ROUNDS = 5


def stepped(
    kind: Callable[..., torch.optim.Optimizer], shapes: list[tuple[int, int]]
) -> Callable[[], object]:
    """A function that makes one step of this optimiser over matrices of these shapes."""
    weights = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return kind(weights, lr=0.02, momentum=0.95, weight_decay=0.05).step


def trained(precision: PrecisionName) -> Callable[[], None]:
    """A function that multiplies 768 × 128 by 128 × 512 in this precision, forward and backward."""
    layer, x = nn.Linear(128, 512), torch.randn(768, 128)

    def step() -> None:
        with autocast(precision, x.device):
            layer(x).sum().backward()

    return step


def medians(sides: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Milliseconds of each, in turn."""
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(ROUNDS + 1):
        for name, run in sides.items():
            begun = time.perf_counter()
            run()
            times[name].append(1000 * (time.perf_counter() - begun))
    return {name: round(statistics.median(each[1:]), 3) for name, each in times.items()}


def main() -> None:
    """Measure, print, and keep what was measured on each processor."""
    file = Path(__file__).parent / "results" / "muon.json"
    found = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    results = {
        f"step of Muon, {name}": medians(
            {"torch": stepped(torch.optim.Muon, shapes), "here": stepped(Muon, shapes)}
        )
        for name, shapes in SHAPES.items()
    }
    results["a linear layer"] = medians({name: trained(name) for name in ("bfloat16", "auto")})
    found[processor()] = {
        "command": "python benchmarks/muon.py",
        "unit": "ms",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "products of bfloat16": bool(multiplies_bfloat16),
        "results": results,
    }
    file.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(json.dumps(found[processor()], indent=1))


if __name__ == "__main__":
    main()
