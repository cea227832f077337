"""Mixtures of experts beside their dense twins of equal active width: forward and backward.

python benchmarks/moe.py benchmarks/results/moe.json
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from addnorm.nn import moe
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig

D_MODEL, D_FF, TOP_K, N_EXPERTS = 256, 512, 2, 8
SHAPES = [(4, 64), (16, 64), (16, 128), (32, 128)]
ROUNDS = 9
NEVER = 2**62


def seconds(layer: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The time of one forward and backward pass."""
    start = time.perf_counter()
    layer(x).backward(x.detach())
    return time.perf_counter() - start


def measured() -> list[dict[str, float | str]]:
    """The medians of all ways for each shape, the ways taking turns."""
    expert = GatedFeedForwardConfig(d_ff=D_FF)
    mixture = MixtureOfExpertsConfig(n_experts=N_EXPERTS, top_k=TOP_K, expert=expert).build(D_MODEL)
    dense = GatedFeedForwardConfig(d_ff=TOP_K * D_FF).build(D_MODEL)
    rows = list[dict[str, float | str]]()
    for batch, seq in SHAPES:
        x = torch.randn(batch, seq, D_MODEL, requires_grad=True)
        times: dict[str, list[float]] = {"dense": [], "grouped": [], "one_by_one": []}
        for _ in range(ROUNDS):
            times["dense"].append(seconds(dense, x))
            for way, least in (("grouped", 0), ("one_by_one", NEVER)):
                moe.GROUPED = least
                times[way].append(seconds(mixture, x))
        ms = {way: round(1e3 * statistics.median(of), 2) for way, of in times.items()}
        ratios = {f"{way}/dense": round(ms[way] / ms["dense"], 3) for way in ms if way != "dense"}
        rows.append({"tokens": f"{batch}x{seq}", **ms, **ratios})
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    report = {"unit": "ms, forward and backward", "threads": threads, "rows": measured()}
    text = json.dumps(report, indent=2)
    print(text)
    if sys.argv[1:]:
        Path(sys.argv[1]).write_text(text + "\n")
