"""A step of our Muon and of torch's, and training in bfloat16 and in `auto`, on this processor.

    python benchmarks/muon.py

Runs both sides in turn; writes median milliseconds to `results/muon.json`.
"""

import json
from collections.abc import Callable

import torch
from timing import RESULTS, milliseconds, seconds_in_turn
from torch import nn

from addnorm.machine import processor
from addnorm.nn.linear import multiplies_bfloat16
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
    """Return the median milliseconds of each, in turn."""
    times = seconds_in_turn(sides, ROUNDS)
    return {name: milliseconds(seconds, 3) for name, seconds in times.items()}


def main() -> None:
    """Measure, print, and keep the figures of each processor."""
    results = {
        f"step of Muon, {name}": medians(
            {"torch": stepped(torch.optim.Muon, shapes), "here": stepped(Muon, shapes)}
        )
        for name, shapes in SHAPES.items()
    }
    results["a linear layer"] = medians({name: trained(name) for name in ("bfloat16", "auto")})
    file = RESULTS / "muon.json"
    processors = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    processors[processor()] = {
        "command": "python benchmarks/muon.py",
        "unit": "ms",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "products of bfloat16": bool(multiplies_bfloat16),
        "results": results,
    }
    file.write_text(json.dumps(processors, indent=1) + "\n", "utf-8")
    print(json.dumps(processors[processor()], indent=1))


if __name__ == "__main__":
    main()
