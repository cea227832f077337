"""Mixtures of experts and dense layers of equal active width: forward and backward.

python benchmarks/moe.py
"""

from functools import partial

import torch
from timing import milliseconds, seconds_in_turn, write_results
from torch import Tensor, nn

from addnorm.nn import moe
from addnorm.nn.feedforward import GatedFeedForwardConfig
from addnorm.nn.moe import MixtureOfExpertsConfig

D_MODEL, D_FF, TOP_K, N_EXPERTS = 256, 512, 2, 8
SHAPES = [(4, 64), (16, 64), (16, 128), (32, 128)]
ROUNDS = 9
NEVER = 2**62


def step(layer: nn.Module, x: Tensor, least: int = 0) -> None:
    """Make a forward and backward pass, grouping products from `least` choices on."""
    moe.GROUPED = least
    layer(x).backward(x.detach())


def measured() -> list[dict[str, float | str]]:
    """The medians of all ways for each shape, the ways taking turns."""
    expert = GatedFeedForwardConfig(d_ff=D_FF)
    mixture = MixtureOfExpertsConfig(n_experts=N_EXPERTS, top_k=TOP_K, expert=expert).build(D_MODEL)
    dense = GatedFeedForwardConfig(d_ff=TOP_K * D_FF).build(D_MODEL)
    rows = list[dict[str, float | str]]()
    for batch, seq in SHAPES:
        x = torch.randn(batch, seq, D_MODEL, requires_grad=True)
        works = {
            "dense": partial(step, dense, x),
            "grouped": partial(step, mixture, x),
            "one_by_one": partial(step, mixture, x, NEVER),
        }
        times = seconds_in_turn(works, ROUNDS)
        ms = {way: milliseconds(seconds) for way, seconds in times.items()}
        ratios = {f"{way}/dense": round(ms[way] / ms["dense"], 3) for way in ms if way != "dense"}
        rows.append({"tokens": f"{batch}x{seq}", **ms, **ratios})
    return rows


if __name__ == "__main__":
    torch.manual_seed(0)
    write_results("moe", {"unit": "ms, forward and backward", "rows": measured()})
